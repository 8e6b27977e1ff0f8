-- Orders and revenue, in windows of five minutes.
CREATE MATERIALIZED VIEW revenue AS
SELECT window.start AS began, count(*) AS orders, sum(amount) AS revenue
FROM orders_silver
GROUP BY window(ordered_at, '5 minutes');

-- What is looked at, and what is bought.
CREATE MATERIALIZED VIEW products AS
SELECT product, sum(views) AS views, sum(orders) AS orders, sum(revenue) AS revenue
FROM (
  SELECT product, 1 AS views, 0 AS orders, 0.0D AS revenue FROM clicks_silver
  UNION ALL
  SELECT product, 0 AS views, 1 AS orders, amount AS revenue FROM orders_silver
)
GROUP BY product;
