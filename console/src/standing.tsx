// Standing: the bans and exceptions that decide about a caller before any limit does.
import type { Schemas } from './api'
import { Badge, Time } from './ui'

type One = Schemas['Standing']

const words = {
  off: 'Switched off', shadow: 'In shadow', ban: 'Banned', bypass: 'Never limited', penalty: 'Under a penalty',
} as const

const tones = { off: 'warn', shadow: 'warn', ban: 'bad', bypass: 'warn', penalty: 'bad' } as const

export function Standing({ all }: { all: One[] | undefined }) {
  return (
    <>
      {all?.map((s) => (
        <p key={[s.what, s.policy, s.tier, s.key, s.since].join(' ')}>
          <Badge tone={s.lifted ? 'warn' : tones[s.what]}>{s.lifted ? 'Lifted while limits are off: ' : ''}{words[s.what]}{s.shadow ? ' in shadow' : ''}</Badge>
          {s.version && ` at Envoys of version ${s.version} alone`}
          {s.policy && ` by policy ${s.policy}`}{s.tier && ` for the tier ${s.tier}`}{s.percent && ` for ${s.percent} % of the keys`}
          {s.reason && `, because: ${s.reason}`}
          {s.until ? <> until <Time at={s.until} /></> : ', without an end'}{s.by && ` (${s.by})`}
        </p>
      ))}
    </>
  )
}
