// Volumes by the web UI: created, mounted in a sandbox, full of consequences when deleted, and off for those who only read.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { BASE, api, closeBrowser, eventually, makeSandbox, openPage, signIn } from './browser.mjs'

after(closeBrowser)

const unique = (name) => `${name}-${Math.random().toString(36).slice(2, 8)}`

test('a volume is created, mounted by a new sandbox, kept while it is mounted, and deleted', async () => {
  const name = unique('cache')
  const page = await openPage()
  await signIn(page, '/ui/volumes')
  await page.getByRole('heading', { name: 'Volumes' }).waitFor()
  await page.getByRole('button', { name: 'New volume' }).first().click()
  const dialog = page.getByRole('dialog', { name: 'New volume' })
  await dialog.getByLabel('Name').fill('not a name')
  await dialog.getByText('Use letters, digits, dashes and underscores.').waitFor()
  assert.ok(await dialog.getByRole('button', { name: 'Create' }).isDisabled())
  await dialog.getByLabel('Name').fill(name)
  // What was typed is not thrown away without a question.
  await page.keyboard.press('Escape')
  await dialog.getByRole('button', { name: 'Keep editing' }).click()
  await dialog.getByLabel('Size limit', { exact: true }).fill('0.5')
  await dialog.getByRole('button', { name: 'Create' }).click()
  await page.getByRole('heading', { name: new RegExp(name) }).waitFor()
  await page.getByText('512 MiB').first().waitFor()
  const { items } = await api('GET', '/api/v1/volumes')
  const { id, size_mib: size } = items.find((volume) => volume.name === name)
  assert.equal(size, 512)

  // Its page leads to the form for a sandbox, with the volume in it.
  await page.getByRole('button', { name: 'Create sandbox' }).click()
  const form = page.getByRole('dialog', { name: 'New sandbox' })
  assert.equal(await form.getByLabel('Mount path 1').inputValue(), '/data')
  await form.getByLabel('Name').fill('with a volume')
  await form.getByText('Size', { exact: true }).click()
  await form.getByLabel('Processors').fill('1')
  await form.getByLabel('Memory', { exact: true }).fill('0.5')
  await form.getByRole('button', { name: 'Create', exact: true }).click()
  await page.locator('[data-terminal=live]').waitFor()
  const [sandbox] = (await api('GET', `/api/v1/volumes/${id}`)).sandboxes
  const made = await api('GET', `/api/v1/sandboxes/${sandbox}`)
  assert.deepEqual(made.volumes, [{ name, path: '/data', read_only: false }])
  assert.equal(made.cpu_count, 1)
  assert.equal(made.memory_mib, 512)
  const written = await api('POST', `/api/v1/sandboxes/${sandbox}/exec`, { command: 'echo kept > /data/a' })
  assert.equal(written.exit_code, 0)

  await page.goto(`${BASE}/ui/volumes`)
  const row = page.getByRole('row').filter({ hasText: name })
  await row.getByRole('cell', { name: 'mounted', exact: true }).waitFor()
  await row.getByRole('link', { name: 'with a volume' }).waitFor()
  await row.getByRole('button', { name: `Delete ${name}` }).click()
  const mounted = page.getByRole('dialog', { name: `${name} is mounted` })
  await mounted.getByRole('link', { name: 'with a volume' }).waitFor()
  await mounted.getByRole('button', { name: 'Close' }).last().click()

  // A sandbox that ends releases it, and the page hears of it.
  await api('DELETE', `/api/v1/sandboxes/${sandbox}`)
  await row.getByRole('cell', { name: 'not mounted', exact: true }).waitFor()

  // What was written is there in the next one, which may only read.
  const reader = await makeSandbox({ volumes: [{ name, path: '/in', read_only: true }] })
  const read = await api('POST', `/api/v1/sandboxes/${reader.id}/exec`, { command: 'cat /in/a; touch /in/b' })
  assert.match(read.stdout, /kept/)
  assert.notEqual(read.exit_code, 0)
  await row.getByRole('link', { name }).click()
  await page.getByText('read-only', { exact: true }).waitFor()
  await api('DELETE', `/api/v1/sandboxes/${reader.id}`)
  await page.getByText('No sandbox mounts it').waitFor()

  await page.getByRole('button', { name: 'Delete', exact: true }).click()
  const question = page.getByRole('dialog', { name: `Delete the volume ${name}?` })
  await question.getByText('There is no copy').waitFor()
  await question.getByRole('button', { name: 'Delete volume' }).click()
  await page.waitForURL(/\/ui\/volumes$/)
  await eventually(
    async () => !(await api('GET', '/api/v1/volumes')).items.some((volume) => volume.name === name),
    'the volume is gone',
  )
  await page.getByRole('row').filter({ hasText: name }).waitFor({ state: 'detached' })
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('a volume is created from within the form of a sandbox, which keeps what was typed', async () => {
  const name = unique('inner')
  const page = await openPage()
  await signIn(page, '/ui/sandboxes?create=true')
  const form = page.getByRole('dialog', { name: 'New sandbox' })
  await form.getByLabel('Name').fill('still here')
  await form.getByText('Volumes', { exact: true }).click()
  await form.getByRole('button', { name: 'New volume' }).click()
  const dialog = page.getByRole('dialog', { name: 'New volume' })
  await dialog.getByLabel('Name').fill(name)
  await dialog.getByRole('button', { name: 'Create' }).click()
  await dialog.waitFor({ state: 'detached' })
  assert.equal(await form.getByLabel('Volume 1', { exact: true }).inputValue(), name)
  assert.equal(await form.getByLabel('Name').inputValue(), 'still here')
  // The server is not asked for what it would refuse.
  await form.getByLabel('Mount path 1').fill('/proc/x')
  await form.getByRole('button', { name: 'Create', exact: true }).click()
  await form.getByRole('alert').getByText('cannot be mounted in').waitFor()
  await form.getByLabel('Mount path 1').fill('/models')
  await form.getByRole('switch', { name: 'Read-only' }).check()
  await form.getByRole('button', { name: 'Create', exact: true }).click()
  await page.locator('[data-terminal=live]').waitFor()
  const id = new URL(page.url()).pathname.split('/').at(-2)
  const made = await api('GET', `/api/v1/sandboxes/${id}`)
  assert.deepEqual(made.volumes, [{ name, path: '/models', read_only: true }])
  await api('DELETE', `/api/v1/sandboxes/${id}`)
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('a read key sees volumes, and why it cannot change them', async () => {
  const name = unique('seen')
  const volume = await api('POST', '/api/v1/volumes', { name })
  const { key } = await api('POST', '/api/v1/keys', { name: 'looks at volumes', role: 'read' })
  const page = await openPage()
  await signIn(page, '/ui/volumes', key)
  await page.getByRole('link', { name }).waitFor()
  await page.getByText('You may only read. To create or delete volumes').waitFor()
  const create = page.getByRole('button', { name: 'New volume' }).first()
  assert.equal(await create.getAttribute('aria-disabled'), 'true')
  assert.match(await create.getAttribute('title'), /only read/)
  await create.click({ force: true })
  assert.equal(await page.getByRole('dialog').count(), 0)
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  await api('DELETE', `/api/v1/volumes/${volume.id}`)
})
