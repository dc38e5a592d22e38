import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, TimeoutError } from 'e2b'
import { eventually, here, make, shared } from './sandbox.mjs'

const box = shared()

test('streams, exit codes', async () => {
  const sandbox = await box()
  const result = await sandbox.commands.run("echo out; echo err >&2; printf 'ünï'")
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\nünï', 'err\n', 0])
  for (const code of [1, 127, 255]) {
    await assert.rejects(sandbox.commands.run(`echo some; exit ${code}`), (error) => {
      assert.ok(error instanceof CommandExitError)
      assert.deepEqual([error.exitCode, error.stdout], [code, 'some\n'])
      return true
    })
  }
})

test('callbacks come while the command runs, in order', async () => {
  const sandbox = await box()
  const dir = await here(sandbox)
  const seen = []
  const running = sandbox.commands.run(`seq 1 5000; until [ -e ${dir}/go ]; do sleep 0.05; done; echo last`, {
    onStdout: (text) => void seen.push(text),
    timeoutMs: 300_000,
  })
  await eventually(() => seen.join('').endsWith('5000\n'))
  await sandbox.files.write(`${dir}/go`, '')
  const { stdout } = await running
  const expected = Array.from({ length: 5000 }, (_, n) => `${n + 1}\n`).join('') + 'last\n'
  assert.equal(seen.join(''), expected)
  assert.equal(stdout, expected)
})

test('large output', async () => {
  const size = 50 << 20
  const { stdout } = await (await box()).commands.run(`head -c ${size} /dev/zero | tr '\\0' x`, { timeoutMs: 280_000 })
  assert.equal(stdout.length, size)
})

test('fifty at once', async () => {
  const sandbox = await box()
  const results = await Promise.all(Array.from({ length: 50 }, (_, n) => sandbox.commands.run(`sleep 0.5; echo ${n}`)))
  assert.deepEqual(
    results.map((r) => r.stdout),
    Array.from({ length: 50 }, (_, n) => `${n}\n`),
  )
})

test('background, list, connect with replay', async () => {
  const sandbox = await box()
  const dir = await here(sandbox)
  const command = await sandbox.commands.run(`echo early; until [ -e ${dir}/go ]; do sleep 0.05; done; echo late`, {
    background: true,
  })
  assert.ok((await sandbox.commands.list()).some((p) => p.pid === command.pid))
  await command.disconnect()
  const attached = await sandbox.commands.connect(command.pid)
  await sandbox.files.write(`${dir}/go`, '')
  assert.equal((await attached.wait()).stdout, 'early\nlate\n')
})

test('stdin and its end', async () => {
  const sandbox = await box()
  const command = await sandbox.commands.run('cat; echo end', { background: true, stdin: true })
  await sandbox.commands.sendStdin(command.pid, 'Hello,\n')
  await command.sendStdin('ünï')
  await command.closeStdin()
  assert.equal((await command.wait()).stdout, 'Hello,\nünïend\n')
})

test('kill and timeout', async () => {
  const sandbox = await box()
  const command = await sandbox.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  assert.equal(await sandbox.commands.kill(command.pid), true)
  await assert.rejects(command.wait(), CommandExitError)
  assert.equal(await sandbox.commands.kill(command.pid), false)
  await assert.rejects(sandbox.commands.run('sleep 1000', { timeoutMs: 2000 }), TimeoutError)
})

test('environment, directory, user; refusals', async () => {
  const { commands } = await box()
  assert.equal((await commands.run('echo $COLOUR $PWD', { envs: { COLOUR: 'red' }, cwd: '/tmp' })).stdout, 'red /tmp\n')
  assert.equal((await commands.run('id -un', { user: 'root' })).stdout, 'root\n')
  await assert.rejects(commands.run('true', { cwd: '/no/such/place' }), InvalidArgumentError)
  await assert.rejects(commands.run('true', { user: 'nobody-here' }), AuthenticationError)
  await assert.rejects(commands.connect(999999), NotFoundError)
})

test('the sandbox is killed while a command runs', async (t) => {
  const sandbox = await make(t)
  const command = await sandbox.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  await sandbox.kill()
  await assert.rejects(command.wait(), /sandbox was killed or reached its end of life/)
})

const terminal = (sandbox, shown, options = {}) =>
  sandbox.pty.create({
    cols: 80,
    rows: 24,
    timeoutMs: 300_000,
    onData: (data) => void shown.push(Buffer.from(data)),
    ...options,
  })
const text = (shown) => Buffer.concat(shown).toString()

test('pty: input, resize, reconnect, kill', async () => {
  const sandbox = await box()
  const type = (pid, line) => sandbox.pty.sendInput(pid, new TextEncoder().encode(line))
  const shown = []
  const first = await terminal(sandbox, shown, { envs: { COLOUR: 'green' }, cwd: '/tmp' })
  await type(first.pid, 'stty size; echo ==$COLOUR:$PWD==\n')
  await eventually(() => text(shown).includes('24 80') && text(shown).includes('==green:/tmp=='))
  await first.disconnect()
  const later = []
  const again = await sandbox.pty.connect(first.pid, {
    onData: (data) => void later.push(Buffer.from(data)),
    timeoutMs: 300_000,
  })
  await sandbox.pty.resize(first.pid, { cols: 121, rows: 33 })
  await type(first.pid, 'sleep 1; stty size; exit\n')
  assert.equal((await again.wait()).exitCode, 0)
  assert.match(text(later), /33 121/)
  const killed = await terminal(sandbox, [])
  assert.equal(await sandbox.pty.kill(killed.pid), true)
  await assert.rejects(killed.wait(), CommandExitError)
})
