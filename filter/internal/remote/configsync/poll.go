package configsync

import (
	"strconv"

	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// inUseError is a type and not a value: to compare errors takes reflection, which the filter has no
// room for.
type inUseError struct{}

// Error implements error.
func (inUseError) Error() string {
	return "cannot load a snapshot: requests still wait under the rules that it would overwrite; try again later"
}

// sendPoll asks for the next snapshot. The poll has the node's version, and the refused version
// with the reason, so it is also the acknowledgement.
func (s *Sync) sendPoll() {
	s.path = s.appendPath(s.path[:0])
	s.polling = true
	err := s.poller.PollSnapshot(s.path, pollTimeout, func(status int, mark, body []byte) {
		s.handleAnswer(status, mark, body)
	})
	if err != nil {
		s.pollFailed(rpc.Unsent, "its cluster has no healthy host or is not configured: "+err.Error())
	}
}

// appendPath appends the path of a poll with its query.
func (s *Sync) appendPath(b []byte) []byte {
	b = append(b, "/node/v1/snapshot?after="...)
	b = strconv.AppendUint(b, s.seen, 10)
	b = appendMark(b, "&mark=", s.seenMark)
	b = append(b, "&wait=25s&protocol="...)
	b = append(strconv.AppendUint(b, wire.Protocol, 10), "&applied="...)
	b = strconv.AppendUint(b, s.appliedVersion(), 10)
	b = appendMark(b, "&applied_mark=", s.mark)
	if s.consumers != nil {
		b = strconv.AppendUint(append(b, "&consumers="...), s.consumers.Revision(), 10)
	}
	if s.penalties != nil {
		b = strconv.AppendUint(append(b, "&penalties="...), s.penalties.Known(), 10)
	}
	if s.enforcement != nil {
		b = strconv.AppendUint(append(b, "&enforcement="...), s.enforcement.Revision(), 10)
	}
	b = appendQuery(append(b, "&node="...), s.node.ID)
	b = append(b, "&boot="...)
	b = strconv.AppendUint(b, s.node.Boot, 16)
	b = appendQuery(append(b, "&filter="...), s.node.Filter)
	if s.node.Zone != "" {
		b = appendQuery(append(b, "&zone="...), s.node.Zone)
	}
	if s.refused != 0 {
		b = strconv.AppendUint(append(b, "&refused="...), s.refused, 10)
		b = appendQuery(append(b, "&reason="...), s.reason)
	}
	return b
}

// appendMark appends a mark unless it is empty.
func appendMark(b []byte, name string, mark []byte) []byte {
	if len(mark) == 0 {
		return b
	}
	return append(append(b, name...), mark...)
}

// keepMark copies a mark, which is valid only now. Other text counts as no mark.
func keepMark(dst, mark []byte) []byte {
	if len(mark) > maxMark {
		return dst[:0]
	}
	for _, c := range mark {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return dst[:0]
		}
	}
	return append(dst[:0], mark...)
}

// maxMark bounds the length of a mark.
const maxMark = 64

// appendQuery percent-encodes all but unreserved characters.
func appendQuery(b []byte, text string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(text) {
		if c := text[i]; policy.Unreserved(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return b
}

// appliedVersion returns the version in force, 0 before the first.
func (s *Sync) appliedVersion() uint64 {
	if !s.have {
		return 0
	}
	return s.rules[s.using].Index.Version()
}

// handleAnswer handles the end of a poll. Status 204 means that there is nothing newer.
func (s *Sync) handleAnswer(status int, mark, body []byte) {
	s.polling = false
	switch status {
	case 200:
		if !s.leader.checkLease(s.clock.Now()) {
			// The next leader may have published a newer snapshot than this late answer.
			s.Stats.Polls[rpc.Answered]++
			return
		}
		switch {
		case s.enforcement != nil && wire.IsEnforcement(body):
			s.endPoll("enforcement", s.enforcement.Changed(body))
			return
		case s.consumers != nil && wire.IsConsumers(body):
			s.endPoll("consumers", s.consumers.Changed(body))
			return
		case s.penalties != nil && wire.IsPenalties(body):
			s.endPoll("penalties", s.penalties.Learn(body))
			return
		}
		s.pollSucceeded()
		s.receiveSnapshot(mark, body)
	case 204:
		s.pollSucceeded()
		if s.consumers != nil {
			s.consumers.Synced()
		}
		if s.refused != 0 {
			// The refused version may have been damaged on its way: ask for it again.
			s.seen, s.seenMark = s.appliedVersion(), append(s.seenMark[:0], s.mark...)
		}
	case 401, 403:
		s.pollFailed(rpc.Refused, "it refuses the node token (status "+strconv.Itoa(status)+
			"): check the token's environment variable")
	case 426:
		s.pollFailed(rpc.Refused, wire.Refused(body).Error())
	default:
		s.pollFailed(rpc.OutcomeOf(status), "status "+strconv.Itoa(status))
	}
}

// endPoll ends a poll that brought a message other than a snapshot.
func (s *Sync) endPoll(what string, err error) {
	if err != nil {
		s.pollFailed(rpc.Unreadable, what+": "+err.Error())
		return
	}
	s.pollSucceeded()
}

// receiveSnapshot begins to load a snapshot, or notes why it cannot.
func (s *Sync) receiveSnapshot(mark, snapshot []byte) {
	err := s.beginLoad(snapshot, polled)
	if _, inUse := err.(inUseError); inUse {
		// The version does not count as seen, so the next poll brings it again.
		s.nextPoll = s.clock.Now() + quota.Instant(inUseRetry)
		return
	}
	s.coming.mark = keepMark(s.coming.mark, mark)
	if err != nil {
		s.refuseVersion(wire.PeekVersion(snapshot), err)
		return
	}
	s.continueLoad()
}

// endReceive puts the polled snapshot into force and publishes it, or notes why it cannot.
func (s *Sync) endReceive(err error) {
	version := s.rules[1-s.using].Index.Version()
	if err != nil {
		s.refuseVersion(version, err)
		return
	}
	if !s.leader.checkLease(s.clock.Now()) {
		return // The next leader may have published a newer snapshot meanwhile.
	}
	s.swapRules()
	s.seen, s.seenMark = version, append(s.seenMark[:0], s.coming.mark...)
	s.refused, s.reason = 0, ""
	s.Stats.Applied++
	s.mark = append(s.mark[:0], s.seenMark...)
	s.publish()
	s.log.Info("weir: policy set version " + strconv.FormatUint(version, 10) + " is in force")
}

// refuseVersion notes that a version does not load, and logs it once.
func (s *Sync) refuseVersion(version uint64, err error) {
	s.seen, s.seenMark = version, append(s.seenMark[:0], s.coming.mark...)
	s.Stats.Refused++
	known := s.refused == version && s.reason == err.Error()
	s.refused, s.reason = version, err.Error()
	if !known {
		s.log.Error("weir: cannot apply policy set version " + strconv.FormatUint(version, 10) + ": " + s.reason +
			"; the last good version stays in force")
	}
}

// pollSucceeded notes an answer, and logs the end of an outage.
func (s *Sync) pollSucceeded() {
	s.Stats.Polls[rpc.Answered]++
	s.heard = s.clock.Now()
	s.sharedHeard.Store(int64(s.heard))
	if s.failing != rpc.Answered {
		s.failing, s.refusedFor = rpc.Answered, ""
		s.log.Info("weir: the control plane answers again")
	}
	s.retry = 0
}

// pollFailed notes a failed poll, and logs the begin of an outage.
func (s *Sync) pollFailed(how rpc.Outcome, why string) {
	s.polling = false
	s.Stats.Polls[how]++
	s.retry = pauses.After(s.retry)
	s.nextPoll = s.clock.Now() + rpc.Spread(s.retry, s.random.Jitter())
	// A control plane that refuses the filter gets each reason logged, also after an outage, as
	// when it was replaced.
	refused := how == rpc.Refused && why != s.refusedFor
	if s.failing == rpc.Answered || refused {
		s.failing = how
		if refused {
			s.refusedFor = why
		}
		problem := "cannot be reached"
		switch how {
		case rpc.Refused:
			problem = "refuses polls"
		case rpc.Unreadable:
			problem = "sends an unreadable answer"
		}
		s.log.Warn("weir: the control plane " + problem + ", the policy set stays as it is: " + why)
	}
}
