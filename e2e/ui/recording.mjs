// The half minute of the README: the demo, from the first steps of an empty project to the merge, as a person would see it.
import { mkdirSync, writeFileSync } from 'node:fs'
import { BASE, api, closeBrowser, openPage, operatorKey } from './browser.mjs'

const INTO = process.env.COFFER_FRAMES
const SIZE = { width: 1280, height: 800 }
mkdirSync(INTO, { recursive: true })

const project = await api('POST', '/api/v1/projects', { name: 'shop' }, operatorKey())
const { key } = await api('POST', `/api/v1/projects/${project.id}/keys`, { name: 'demo', role: 'admin' }, operatorKey())
const { token } = await api('POST', '/api/v1/sign-in-links', {}, key)
const page = await openPage({ viewport: SIZE, reducedMotion: 'no-preference', colorScheme: 'light' })
await page.goto(`${BASE}/ui/#token=${token}`)
const demo = page.getByRole('button', { name: 'Try the demo' })
await demo.waitFor()

const frames = []
const session = await page.context().newCDPSession(page)
session.on('Page.screencastFrame', ({ data, metadata, sessionId }) => {
  const file = `${INTO}/${String(frames.length).padStart(5, '0')}.png`
  writeFileSync(file, Buffer.from(data, 'base64'))
  frames.push({ file, at: metadata.timestamp })
  session.send('Page.screencastFrameAck', { sessionId }).catch(() => {})
})
await session.send('Page.startScreencast', { format: 'png', maxWidth: SIZE.width, maxHeight: SIZE.height })

// A pointer, because the browser draws none where nobody holds a mouse.
await page.evaluate(() => {
  const dot = document.createElement('div')
  Object.assign(dot.style, {
    ...{ position: 'fixed', zIndex: 9999, width: '18px', height: '18px', borderRadius: '50%', pointerEvents: 'none' },
    ...{ background: '#0f6b6688', border: '2px solid #0f6b66', translate: '-50% -50%', left: '50%', top: '60%' },
  })
  document.body.append(dot)
  addEventListener('mousemove', (event) => {
    dot.style.left = `${event.clientX}px`
    dot.style.top = `${event.clientY}px`
  })
})

const rest = (ms) => page.waitForTimeout(ms)
async function click(what) {
  await what.waitFor()
  const box = await what.boundingBox()
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2, { steps: 12 })
  await rest(500)
  await what.click()
}
const tab = (name) => page.getByRole('navigation', { name: 'Parts of the task' }).getByRole('link', { name })

await rest(1500)
await click(demo)
await page.getByRole('log').getByText('It must be added.').waitFor()
await page.locator('[data-sonner-toast]').filter({ hasText: 'is ready for review' }).waitFor()
await rest(1500)
await click(tab('Checks'))
await rest(2000)
await click(tab('Changes'))
await page.getByRole('region', { name: 'Changes of price.sh' }).getByText('net + tax').waitFor()
await rest(2500)
await click(page.getByRole('button', { name: 'Merge', exact: true }))
await rest(800)
await click(page.getByRole('dialog').getByRole('button', { name: 'Merge', exact: true }))
await page.getByText('merged', { exact: true }).waitFor()
await rest(1500)
await click(page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Board' }))
await rest(2500)
await session.send('Page.stopScreencast')
// The browser sends a frame when something changes: each is shown until the next.
const took = frames.at(-1).at - frames[0].at + 2
// Half a minute, also from a slow machine.
const pace = Math.min(1, 30 / took)
const lines = frames.flatMap(({ file, at }, index) => {
  const next = frames[index + 1]?.at ?? at + 2
  return [`file '${file}'`, `duration ${Math.max(0.02, (next - at) * pace).toFixed(3)}`]
})
writeFileSync(`${INTO}/list.txt`, `${lines.join('\n')}\nfile '${frames.at(-1).file}'\n`)
console.log(`recorded ${frames.length} frames of ${(frames.at(-1).at - frames[0].at).toFixed(1)} s`)
await closeBrowser()
