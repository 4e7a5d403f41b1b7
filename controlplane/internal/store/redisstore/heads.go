package redisstore

import (
	"context"
	_ "embed" // for the script
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

//go:embed scripts/poll.lua
var pollScript string

var poll = redis.NewScript(pollScript)

// reading is a part of a poll: its letter in poll.lua, and its keys.
type reading struct {
	letter string
	keys   []string
}

// The parts of a poll, beside the look at a server.
var (
	readSecret      = reading{"s", []string{keySecret, keyProtocol}}
	readVersions    = reading{"v", []string{keyVersion, keyRollout, keyVersions, keyDocuments}}
	readEnforcement = reading{"r", docKeys(docs.Enforcement)[:1]}
	readTime        = reading{letter: "c"}
)

// readHead returns the part of a poll that reads a topic's head.
func readHead(t *docs.Topic) reading { return reading{"t", []string{topicKey(t, "state")}} }

// readLook returns the part of a poll that looks at the server of a tag.
func readLook(tag byte) reading { return reading{"l", []string{lookedKey(tag), lostKey(tag)}} }

// readParts reads several parts whose keys are on one server. The arguments are for the part "s".
func (s *Store) readParts(
	ctx context.Context, server redis.Scripter, parts []reading, args ...any,
) (texts [][]string, err error) {
	var letters strings.Builder
	var keys []string
	for _, p := range parts {
		letters.WriteString(p.letter)
		keys = append(keys, p.keys...)
	}
	err = s.guarded(ctx, keys[0], func() error {
		reply, err := poll.Run(ctx, server, keys, append([]any{letters.String()}, args...)...).Slice()
		if err == nil && len(reply) != len(parts) {
			err = fmt.Errorf("cannot read the answer of the script that polls: it has %d values", len(reply))
		}
		for _, part := range reply {
			texts = append(texts, textsOf(part))
		}
		return err
	})
	return texts, err
}

// Heads implements push.Store. A single server is called once. In a cluster it looks at each
// server, and then calls the servers that keep the heads. It also lays the markers of a new
// deployment and checks whether a server has lost state, so it must be called all the time.
func (s *Store) Heads(ctx context.Context, candidate [16]byte) (h push.Heads, err error) {
	if err := s.checkAgain(ctx); err != nil {
		return h, err
	}
	parts := s.refreshServers(ctx)
	if s.cluster {
		s.watchProcesses(ctx, parts, s.lookAtAll(ctx, parts))
	}
	for laid := false; ; laid = true {
		ok, err := s.readHeads(ctx, &h, parts, candidate, laid)
		if err != nil || ok {
			return h, err
		}
		if _, err := s.layMarkers(ctx, 0); err != nil {
			h.NoSecret = err
			return h, nil
		}
	}
}

// readHeads reads all heads. It returns false if the deployment has no markers yet.
func (s *Store) readHeads(
	ctx context.Context, h *push.Heads, parts map[string]*part, candidate [16]byte, laid bool,
) (ok bool, err error) {
	s.mu.Lock()
	// After secretlessLooks looks no other control plane has given the secret back, so none knows
	// it.
	given := s.secretless >= secretlessLooks
	args := []any{candidate[:], flagText(s.known), flagText(laid || given), wire.Protocol}
	s.mu.Unlock()
	meta := []reading{readSecret, readVersions, readEnforcement, readTime}
	var others []reading
	for _, t := range docs.Topics {
		others = append(others, readHead(t))
	}
	// In a cluster the topics are on other servers than the rest.
	if s.cluster {
		texts, err := s.readParts(ctx, s.client, meta, args...)
		if err != nil {
			return false, err
		}
		return s.takeHeads(ctx, h, append(texts, s.readBeside(ctx, others)...), candidate, given)
	}
	// A single server answers everything in one call, with a look at the server.
	begin := s.now()
	texts, err := s.readParts(ctx, s.client, append(append(meta, others...), readLook(0)), args...)
	s.far.note("", s.now().Sub(begin), err)
	if err != nil {
		return false, err
	}
	if last := len(texts) - 1; !laid {
		s.watchProcesses(ctx, parts, map[string]sight{"": sightOf(texts[last])})
	}
	return s.takeHeads(ctx, h, texts, candidate, given)
}

// readBeside reads parts from several servers of a cluster at the same time. Each read ends after
// lookTime, so a server that hangs does not delay the other parts. A part that cannot be read is
// empty.
func (s *Store) readBeside(ctx context.Context, parts []reading) [][]string {
	texts := make([][]string, len(parts))
	var reads sync.WaitGroup
	for i, part := range parts {
		reads.Go(func() {
			timed, cancel := context.WithTimeout(ctx, s.lookTime())
			defer cancel()
			if found, err := s.readParts(timed, s.client, []reading{part}); err == nil {
				texts[i] = found[0]
			}
		})
	}
	reads.Wait()
	return texts
}

// takeHeads decodes the texts of all heads. A head that cannot be decoded stays nil: the service of
// the topic then reads it by itself and gets the error.
func (s *Store) takeHeads(
	ctx context.Context, h *push.Heads, texts [][]string, candidate [16]byte, given bool,
) (ok bool, err error) {
	if len(texts[0]) == 0 {
		return false, nil
	}
	if len(texts[0]) > 1 {
		if err := s.checkProtocol(texts[0][1]); err != nil {
			return false, err
		}
	}
	h.Secret, h.NoSecret = s.takeSecret(ctx, texts[0][0], candidate, given)
	if state, err := stateOf(texts[1]); err == nil {
		h.Policies = &state
	}
	if numbers, err := parseUints(texts[2]); err == nil && len(numbers) == 1 {
		h.Enforcement = &numbers[0]
	}
	if numbers, err := parseUints(texts[3]); err == nil && len(numbers) == 2 {
		h.Time = time.Unix(int64(numbers[0]), int64(numbers[1])*1000)
	}
	h.Topics = map[string]*docs.Head{}
	for i, t := range docs.Topics {
		if numbers, err := parseUints(texts[4+i]); err == nil && len(numbers) == 3 {
			h.Topics[t.Tag] = &docs.Head{First: numbers[0], Revision: numbers[1], Cleared: numbers[2]}
		}
	}
	return true, nil
}

// takeSecret decodes the answer about the secret.
func (s *Store) takeSecret(
	ctx context.Context, text string, candidate [16]byte, given bool,
) (secret [16]byte, err error) {
	if text == "" {
		s.mu.Lock()
		s.secretless++
		s.mu.Unlock()
		return secret, errSecretLost
	}
	if given && text == string(candidate[:]) {
		s.log.Error("Redis has lost the secret that keys all hashes, and no control plane knows it: " +
			"this one makes a new secret, and stored consumers and keys are no longer found; restore a backup")
	}
	if len(text) != len(candidate) {
		return secret, fmt.Errorf("cannot read %s: it is not a secret of %d bytes", keySecret, len(candidate))
	}
	if err := s.Inspect(ctx); err != nil {
		return secret, err
	}
	s.mu.Lock()
	s.known, s.secretless = true, 0
	s.mu.Unlock()
	return keyhash.Key([]byte(text)), nil
}

// State implements policies.Store.
func (s *Store) State(ctx context.Context) (policies.State, error) {
	texts, err := s.readParts(ctx, s.client, []reading{readVersions})
	if err != nil {
		return policies.State{}, err
	}
	return stateOf(texts[0])
}
