import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdtemp, mkdir, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { BuildError, Sandbox, Template } from 'e2b'
import './sandbox.mjs'

const api = process.env.E2B_API_URL
const headers = { 'X-API-KEY': process.env.E2B_API_KEY }
const made = []

function name() {
  made.push(`tpl-js-${randomUUID().slice(0, 12)}`)
  return made.at(-1)
}

/** A sandbox of a template; it ends with the test. */
async function start(t, template) {
  const sandbox = await Sandbox.create(template, { timeoutMs: 600_000 })
  t.after(() => sandbox.kill())
  return sandbox
}

after(async () => {
  for (const one of made) await fetch(`${api}/templates/${one}`, { method: 'DELETE', headers })
})

test('a template from steps and files, with a directory link', async (t) => {
  const context = await mkdtemp(join(tmpdir(), 'coffer-js-'))
  await mkdir(join(context, 'app/real'), { recursive: true })
  await writeFile(join(context, 'app/real/file.txt'), 'content')
  // The SDK packs the link, and then the files of its target below it.
  await symlink('real', join(context, 'app/linked'))
  const template = Template({ fileContextPath: context })
    .fromBaseImage()
    .setEnvs({ KIND: 'js' })
    .copy('app', '/srv/app')
    .runCmd('echo $KIND > /home/user/kind')
  const chosen = name()
  const logs = []
  const info = await Template.build(template, chosen, { onBuildLogs: (entry) => logs.push(entry.message) })
  assert.ok(info.templateId && info.buildId)
  assert.ok(logs.some((line) => line.includes('COPY app /srv/app')))
  const sandbox = await start(t, chosen)
  assert.equal(await sandbox.files.read('/home/user/kind'), 'js\n')
  assert.equal(await sandbox.files.read('/srv/app/linked/file.txt'), 'content')
})

test('a Dockerfile', async (t) => {
  const context = await mkdtemp(join(tmpdir(), 'coffer-js-'))
  await writeFile(join(context, 'a.txt'), 'a')
  const dockerfile =
    'FROM e2bdev/base\nENV ONE=1\nWORKDIR /app\nCOPY a.txt .\nRUN cat a.txt > b.txt && id -un > who\nUSER user\n'
  const chosen = name()
  await Template.build(Template({ fileContextPath: context }).fromDockerfile(dockerfile), chosen)
  const sandbox = await start(t, chosen)
  assert.equal(await sandbox.files.read('/app/b.txt'), 'a')
  assert.equal(await sandbox.files.read('/app/who'), 'root\n')
  assert.equal((await sandbox.commands.run('echo $ONE; id -un')).stdout, '1\nuser\n')
})

test('a failed build is a BuildError', async () => {
  const template = Template().fromBaseImage().runCmd('exit 7')
  await assert.rejects(Template.build(template, name()), (error) => {
    assert.ok(error instanceof BuildError)
    assert.match(error.message, /exit status 7/)
    return true
  })
})

test('a sandbox of an unknown template is refused', async () => {
  await assert.rejects(Sandbox.create('no-such-template-here'))
})
