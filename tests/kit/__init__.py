"""Tools that the tests share: a simulated disk that loses power, and a disk that fails on plan."""
