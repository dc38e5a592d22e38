import assert from 'node:assert/strict'
import { test } from 'node:test'
import { eventually, make, shared, visit } from './sandbox.mjs'

const box = shared()
const serving = async (sandbox, port, request) => {
  await sandbox.commands.run(`python3 -m http.server ${port} -d /etc`, { background: true, timeoutMs: 0 })
  await eventually(async () => (await visit(sandbox, port, request)).status !== 502)
}

test('a port by header and by Host', async () => {
  const sandbox = await box()
  await serving(sandbox, 8000)
  for (const by of ['header', 'host']) {
    const answer = await visit(sandbox, 8000, { path: '/hostname', by })
    assert.equal(answer.status, 200)
    assert.equal(answer.text.trim(), (await sandbox.commands.run('cat /etc/hostname')).stdout.trim())
  }
})

test('a closed port, a sandbox that is gone', async (t) => {
  const sandbox = await make(t)
  const closed = await visit(sandbox, 3999)
  assert.equal(closed.status, 502)
  assert.deepEqual(JSON.parse(closed.text), {
    sandboxId: sandbox.sandboxId,
    message: 'The sandbox is running but port is not open',
    port: 3999,
    code: 502,
  })
  await sandbox.kill()
  const gone = JSON.parse((await visit(sandbox, 3999)).text)
  assert.deepEqual([gone.message, gone.code], ['The sandbox was not found', 502])
})

test('traffic token', async (t) => {
  const sandbox = await make(t, { network: { allowPublicTraffic: false } })
  const headers = { 'e2b-traffic-access-token': sandbox.trafficAccessToken }
  await serving(sandbox, 8000, { headers })
  assert.equal((await visit(sandbox, 8000)).status, 403)
  assert.equal((await visit(sandbox, 8000, { headers })).status, 200)
})
