"""Take pictures of the web page, and measure it beside a large fleet, in a real browser."""
