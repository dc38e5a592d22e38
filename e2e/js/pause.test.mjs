import assert from 'node:assert/strict'
import { test } from 'node:test'
import { bootId, eventually, make, visit } from './sandbox.mjs'

const paused = (sandbox) => async () => (await sandbox.getInfo()).state === 'paused'

test('memory survives pause and connect', async (t) => {
  const sandbox = await make(t, { envs: { COLOUR: 'blue' } })
  const boot = await bootId(sandbox)
  const command = await sandbox.commands.run('sleep 3600', { background: true, timeoutMs: 0 })
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.pause(), false)
  assert.equal(await sandbox.isRunning(), false)
  assert.equal((await sandbox.connect()).sandboxId, sandbox.sandboxId)
  assert.ok((await sandbox.commands.list()).some((p) => p.pid === command.pid))
  assert.equal((await sandbox.commands.connect(command.pid)).pid, command.pid)
  assert.equal(await bootId(sandbox), boot)
  assert.equal((await sandbox.commands.run('echo $COLOUR')).stdout, 'blue\n')
})

test('a filesystem-only pause boots again', async (t) => {
  const sandbox = await make(t)
  const boot = await bootId(sandbox)
  await sandbox.files.write('kept', 'on disk')
  await sandbox.pause({ keepMemory: false })
  await sandbox.connect()
  assert.equal(await sandbox.files.read('kept'), 'on disk')
  assert.notEqual(await bootId(sandbox), boot)
})

test('auto-pause without auto-resume waits for connect', async (t) => {
  const sandbox = await make(t, { lifecycle: { onTimeout: 'pause' } })
  await sandbox.setTimeout(1000)
  await eventually(paused(sandbox))
  assert.equal(await sandbox.isRunning(), false)
  await sandbox.connect()
  assert.equal(await sandbox.isRunning(), true)
})

test('auto-resume on a visit', async (t) => {
  const sandbox = await make(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
  await sandbox.commands.run('python3 -m http.server 8000', { background: true, timeoutMs: 0 })
  await eventually(async () => (await visit(sandbox, 8000)).status === 200)
  await sandbox.setTimeout(1000)
  await eventually(paused(sandbox))
  assert.equal((await visit(sandbox, 8000)).status, 200)
  assert.equal((await sandbox.getInfo()).state, 'running')
})
