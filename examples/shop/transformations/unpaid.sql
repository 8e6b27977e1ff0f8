-- The join of two streams in SQL: orders that were not paid within half an hour. An order is written when the
-- watermarks have passed that time: no payment can come any more.
CREATE STREAMING TABLE unpaid_orders AS
SELECT orders.order_id, customer, ordered_at, orders.amount
FROM STREAM orders_silver WATERMARK ordered_at DELAY OF INTERVAL 1 HOUR AS orders
LEFT JOIN STREAM payments_silver WATERMARK paid_at DELAY OF INTERVAL 1 HOUR AS payments
  ON orders.order_id = payments.order_id
  AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 30 MINUTES
WHERE payments.order_id IS NULL;

-- Windows as a stream: each hour is written once, when the watermark has passed its end, and costs nothing
-- after that. A materialized view has the running hour too, and reads all orders for it in every update.
CREATE STREAMING TABLE orders_by_hour AS
SELECT window.start AS hour, count(*) AS orders, round(sum(amount), 2) AS revenue
FROM STREAM orders_silver WATERMARK ordered_at DELAY OF INTERVAL 1 HOUR
GROUP BY window(ordered_at, '1 hour');
