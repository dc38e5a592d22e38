// Templates by the web UI: a build that fails at a step, mended and built, and a sandbox from it; cancelled; only read.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { BASE, api, closeBrowser, eventually, openPage, signIn } from './browser.mjs'

after(closeBrowser)

const unique = (name) => `${name}-${Math.random().toString(36).slice(2, 8)}`
const FROM = 'FROM e2bdev/base'

async function write(page, text) {
  await page.getByRole('textbox', { name: 'Dockerfile' }).fill(text)
}

async function built(page, state) {
  await page.waitForURL(/\/builds\//)
  await page.getByRole('heading', { name: /Build/ }).getByText(state, { exact: true }).waitFor()
}

const step = (page, text) =>
  page.getByRole('list', { name: 'Steps of the build' }).getByRole('listitem').filter({ hasText: text })

test('a Dockerfile whose step fails shows the step; mended it is built from the cache, and sandboxes start from it', async () => {
  const name = unique('greeter')
  const page = await openPage()
  await signIn(page, '/ui/templates')
  await page.getByRole('link', { name: 'base', exact: true }).waitFor()
  await page.getByRole('button', { name: 'New template' }).first().click()

  // What cannot be read is refused with its line, and nothing is built.
  await page.getByLabel('Name').fill('Not A Name')
  await page.getByText('Use lower-case letters').waitFor()
  assert.ok(await page.getByRole('button', { name: 'Build', exact: true }).isDisabled())
  await page.getByLabel('Name').fill(name)
  await write(page, `${FROM}\nRUM echo hello\n`)
  await page.getByRole('button', { name: 'Build', exact: true }).click()
  await page
    .getByRole('alert')
    .getByText(/line 2/i)
    .waitFor()
  await page.locator('.cm-wrong-line').filter({ hasText: 'RUM' }).waitFor()

  // Of this test alone, so that no earlier build left it in the cache.
  const hello = `first step of ${name}`
  const steps = (last) => `${FROM}\nRUN echo ${hello}\nCOPY hello.txt /srv/hello.txt\n${last}\nENV GREETING=hi\n`
  await write(page, steps('RUN echo about to fail && cat /srv/missing.txt'))
  await page.getByText('The Dockerfile copies files.').waitFor()
  await page
    .getByLabel('Files of the build context')
    .setInputFiles({ name: 'hello.txt', mimeType: 'text/plain', buffer: Buffer.from('hello from a file\n') })
  await page.getByText('1 file, 18 B').waitFor()
  await page.getByRole('button', { name: 'Build', exact: true }).click()
  await built(page, 'failed')
  await page
    .getByRole('alert')
    .getByText(/Step \d+ failed/)
    .waitFor()
  const failed = step(page, 'about to fail')
  assert.equal(await failed.getAttribute('data-state'), 'failed')
  await failed.getByRole('log').getByText('/srv/missing.txt: No such file or directory').first().waitFor()
  // What went well is folded.
  const first = step(page, `RUN echo ${hello}`)
  assert.equal(await first.getAttribute('data-state'), 'done')
  assert.equal(await first.getByRole('log').count(), 0)
  await first.getByRole('button').click()
  await first.getByRole('log').getByText(hello, { exact: true }).waitFor()

  // The form has everything as it was, the file too, and marks the line.
  await page.getByRole('button', { name: 'Edit and build again' }).click()
  await page.locator('.cm-wrong-line').filter({ hasText: 'missing.txt' }).waitFor()
  await page.getByText('1 file, 18 B').waitFor()
  await write(page, steps('RUN cat /srv/hello.txt'))
  await page.keyboard.press('Control+Enter')
  await built(page, 'ready')
  assert.equal(await step(page, `RUN echo ${hello}`).getAttribute('data-state'), 'cached')
  await step(page, `RUN echo ${hello}`).getByText('CACHED', { exact: true }).waitFor()

  await page.getByRole('button', { name: 'Create sandbox' }).click()
  const form = page.getByRole('dialog', { name: 'New sandbox' })
  await form.getByRole('button', { name: new RegExp(`Template ${name}`) }).waitFor()
  await form.getByRole('button', { name: 'Create', exact: true }).click()
  await page.locator('[data-terminal=live]').waitFor()
  const id = new URL(page.url()).pathname.split('/').at(-2)
  const said = await api('POST', `/api/v1/sandboxes/${id}/exec`, { command: 'cat /srv/hello.txt; echo $GREETING' })
  assert.equal(said.stdout, 'hello from a file\nhi\n')
  await api('DELETE', `/api/v1/sandboxes/${id}`)

  // It is found by a few letters of its name.
  await page.goto(`${BASE}/ui/sandboxes?create=true`)
  await form.getByRole('button', { name: /^Template/ }).click()
  await page.getByPlaceholder('Find by name').fill(name.slice(0, 12))
  await page.keyboard.press('Enter')
  await form.getByRole('button', { name: new RegExp(`Template ${name}`) }).waitFor()
  // What was chosen is not lost without a question.
  await page.keyboard.press('Escape')
  await form.getByRole('button', { name: 'Discard' }).click()

  await page.goto(`${BASE}/ui/templates/${name}`)
  const builds = page.getByRole('region', { name: 'Builds' }).getByRole('link')
  await eventually(
    async () => (await builds.count()) === 2,
    () => page.locator('main').innerText(),
  )
  await page.getByRole('button', { name: 'Delete', exact: true }).click()
  const question = page.getByRole('dialog', { name: `Delete the template ${name}?` })
  await question.getByText('Sandboxes that run from it keep running.').waitFor()
  await question.getByRole('button', { name: 'Delete template' }).click()
  await page.waitForURL(/\/ui\/templates$/)
  await page.getByRole('link', { name, exact: true }).waitFor({ state: 'detached' })
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('output is followed while a step runs, and a build is cancelled', async () => {
  const name = unique('slow')
  const page = await openPage()
  await signIn(page, '/ui/templates/new')
  await page.getByLabel('Name').fill(name)
  await write(page, `${FROM}\nRUN echo it runs now; sleep 600\n`)
  await page.getByRole('button', { name: 'Build', exact: true }).click()
  const running = step(page, 'sleep 600')
  await running.getByRole('log').getByText('it runs now', { exact: true }).waitFor()
  assert.equal(await running.getAttribute('data-state'), 'running')
  await page.getByRole('button', { name: 'Cancel build' }).click()
  await page.getByRole('dialog').getByText('Finished steps stay cached').waitFor()
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel build' }).click()
  await page.getByRole('button', { name: 'Edit and build again' }).waitFor()
  await eventually(
    async () => (await step(page, 'sleep 600').getAttribute('data-state')) !== 'running',
    () => page.locator('main').innerText(),
  )
  await api('DELETE', `/api/v1/templates/${name}`)
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('a read key sees templates, and why it cannot build', async () => {
  const { key } = await api('POST', '/api/v1/keys', { name: 'looks at templates', role: 'read' })
  const page = await openPage()
  await signIn(page, '/ui/templates', key)
  await page.getByRole('link', { name: 'base', exact: true }).waitFor()
  await page.getByText('You may only read. To build or delete templates').waitFor()
  const create = page.getByRole('button', { name: 'New template' }).first()
  assert.equal(await create.getAttribute('aria-disabled'), 'true')
  await page.goto(`${BASE}/ui/templates/new`)
  await page.getByText('You may only read. To build templates').waitFor()
  assert.ok(await page.getByRole('button', { name: 'Build', exact: true }).isDisabled())
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})
