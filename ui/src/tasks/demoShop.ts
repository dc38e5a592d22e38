// The repository of the demo, as a bundle of git in base64: `scripts/demo --bundle` prints it.
const LINES = [
  "IyB2MiBnaXQgYnVuZGxlCmM4ZTc5ZmFjYmI0Zjg5ODFkZGVmNGM3YjE3OWYyYTAzOWI1YmM4MjIgcmVmcy9oZWFkcy9tYWluCgpQ",
  "QUNLAAAAAgAAAASYCniclYtLCsIwEED3OcXsBZkmzaci4sKLTJIpDRhS0hF7fHMF3+ItHjzpzLAGg84Ytibo2RpCizHGaY55Sbxk",
  "Qm8CeYuKPrK1Di+uDe55+Mkn1f3N19TqAybvvNbWIcIFB2rUWkT4j0WtTHKDvZfEB3yLbCB0qh9eKjIQpwR4nDM0MDAzMVEoKMpM",
  "TtUrzmCYVTil/++ttxuavSvXa/83vqP34EmSIURNSWpxCUiJ9qmV+TXHO+4Hz6kNeivTvLu0pTgAACM0HyG3CXicLY29CoMwGEX3",
  "PMUtZtBSjXYsZOjgWor4AmnyQT4oUWL68/hNiuM5l8OtDurBQW1eVLhHDmmDwRrZEj6cPN7m+aLWOEcOyXwv+3YbZ0zXeTyBAyz9",
  "s+AKrBQLdyJQ0nIQ0STS8ixyrGVdZ4sjioTC0PdNI8j6BfvUlpPsflJ5LgOzFXicXZDBTsMwEETv/orBDSpIJbF7oWmaQ4WKhMSt",
  "R8QhJNvaItjINhT+nnXaE9bKO1q9Gdk7u6rerKuiETPsvin8YrSO1nCU8BlsTwuELvF9Ml2CTYjGf40Dev9BSL4Uh86ONLRKnAwL",
  "BOoG3IXJn404Bh9jg8EL8Dn61BY30aCspvSSpSwYltwyL28nzh7wwhPGJdoscorEa4NkyIF64yH9O5PZDH7a5L6WDWiMdAEet0/P",
  "/4A1cugCzvPknNrg8gfNyorBO8JmM3/Y7nf7udBKKSwV9FIpUdc1NJderYTCPZSYKEE/vJniHCP+AO/sYrqpdCx/bB3xO6lYPSKe",
  "oDPCZqaLYw==",
];

export function demoBundle(): Uint8Array<ArrayBuffer> {
  const bytes = atob(LINES.join(""));
  return Uint8Array.from(bytes, (one) => one.charCodeAt(0));
}
