-- How much came in, by topic and minute.
CREATE MATERIALIZED VIEW traffic_by_minute AS
SELECT
  topic,
  date_trunc('MINUTE', timestamp) AS minute,
  count(*) AS records,
  sum(length(value)) AS bytes
FROM bronze
GROUP BY topic, date_trunc('MINUTE', timestamp);
