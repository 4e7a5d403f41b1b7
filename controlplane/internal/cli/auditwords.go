package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
)

// describeChange describes a change. A kind that this version of weir does not know is shown
// unchanged.
func describeChange(e *gen.AuditEntry) string {
	kind, _, _ := strings.Cut(e.Action, ".")
	say, known := sentences[kind]
	var text string
	if known {
		text = say(e)
	}
	if text == "" {
		text = fmt.Sprintf("%s of %s: %s → %s", e.Action, e.Resource, inWords(e.Before), inWords(e.After))
	}
	if e.Reason != "" && !strings.Contains(text, ": "+e.Reason) {
		text += ": " + e.Reason
	}
	return printable(text)
}

// sentences has a function for each kind of resource. It returns "" for values that it cannot read.
var sentences = map[string]func(e *gen.AuditEntry) string{
	"policyset": versionSentence, "policy": versionSentence, "version": versionSentence,
	"rollout": rolloutSentence, "enforcement": orderSentence, "key": keySentence,
	"consumer": consumerSentence, "consumers": batchSentence, "penalties": penaltySentence,
}

// readInto reads a value of an entry. It returns false for a value that was too large to be stored.
func readInto(value, target any) bool {
	text, err := json.Marshal(value)
	return err == nil && json.Unmarshal(text, target) == nil
}

// versionSentence returns text like: version 3: api: limit 10 per 1m → 20 per 1m.
func versionSentence(e *gen.AuditEntry) string {
	var after struct {
		Version        uint64
		Summary, Nodes string
	}
	if !readInto(e.After, &after) || after.Version == 0 {
		return ""
	}
	text := fmt.Sprintf("version %d", after.Version)
	if after.Nodes != "" {
		text += fmt.Sprintf(" for %s of the nodes", after.Nodes)
	}
	return text + ": " + after.Summary
}

func rolloutSentence(e *gen.AuditEntry) string {
	var before, after struct {
		Version uint64
		Nodes   string
		AbortIf string `json:"abort_if"`
	}
	switch {
	case !readInto(e.Before, &before) || !readInto(e.After, &after):
		return ""
	case e.After == nil:
		return fmt.Sprintf("version %d taken back, which %s of the nodes had", before.Version, before.Nodes)
	}
	if e.Action == "rollout.abort" {
		return fmt.Sprintf("version %d taken back by its rule, %s of the nodes had it: %s", before.Version,
			before.Nodes, e.Reason)
	}
	return fmt.Sprintf("version %d for %s of the nodes, before for %s", after.Version, after.Nodes, before.Nodes)
}

// orderSentence names the orders that were given and lifted.
func orderSentence(e *gen.AuditEntry) string {
	var before, after []enforcement.Order
	if !readInto(e.Before, &before) || !readInto(e.After, &after) {
		return ""
	}
	var said []string
	for _, o := range after {
		if !slices.ContainsFunc(before, func(b enforcement.Order) bool { return sameOrder(b, o) }) {
			text := fmt.Sprintf("enforcement %s for %s", o.State, o.Scope())
			if o.Percent < 100 {
				text += fmt.Sprintf(", %d %% of the keys", o.Percent)
			}
			said = append(said, text+" "+markText(o.Reason, o.Expires))
		}
	}
	for _, o := range before {
		if !slices.ContainsFunc(after, func(a enforcement.Order) bool { return a.Scope() == o.Scope() }) {
			said = append(said, fmt.Sprintf("enforcement no longer %s for %s", o.State, o.Scope()))
		}
	}
	if len(before)+len(after) == 0 {
		return "enforcement: all orders taken back, of which there were none"
	}
	if len(said) == 0 {
		return "enforcement: all orders as before"
	}
	return strings.Join(said, "; ")
}

// sameOrder reports whether two orders are equal.
func sameOrder(a, b enforcement.Order) bool {
	return a.State == b.State && a.Percent == b.Percent && a.Scope() == b.Scope() && a.Reason == b.Reason &&
		markText("", a.Expires) == markText("", b.Expires)
}

// penaltySentence returns text like: penalties/login: pardoned 3, or: penalties begun: login 12.
func penaltySentence(e *gen.AuditEntry) string {
	var after map[string]int
	if !readInto(e.After, &after) || len(after) == 0 {
		return ""
	}
	if e.Action == "penalties.pardon" {
		return fmt.Sprintf("%s: pardoned %d", e.Resource, after["pardoned"])
	}
	var said []string
	for _, policy := range slices.Sorted(maps.Keys(after)) {
		said = append(said, fmt.Sprintf("%s %d", policy, after[policy]))
	}
	return "penalties begun: " + strings.Join(said, ", ")
}

// keySentence returns text like: key 0d1e… of login: banned until …: tries passwords.
func keySentence(e *gen.AuditEntry) string {
	parts := strings.Split(e.Resource, "/")
	if len(parts) != 3 {
		return ""
	}
	text := fmt.Sprintf("key %s of %s: ", parts[2], parts[1])
	switch e.Action {
	case "key.ban":
		var ban enforcement.Ban
		if !readInto(e.After, &ban) {
			return ""
		}
		return text + "banned " + markText(ban.Reason, ban.Expires)
	case "key.unban":
		return text + "no longer banned"
	case "key.reset":
		return text + "reset"
	case "key.grant":
		var given struct{ Tokens int64 }
		if !readInto(e.After, &given) {
			return ""
		}
		return text + "given " + plural(int(given.Tokens), "token", "tokens")
	}
	return ""
}

// consumerSentence describes the changes of a consumer.
func consumerSentence(e *gen.AuditEntry) string {
	var before, after consumers.Record
	if !readInto(e.Before, &before) || !readInto(e.After, &after) {
		return ""
	}
	said := appendMarkChange(nil, "banned", before.Banned, after.Banned)
	said = appendMarkChange(said, "not limited", before.Bypass, after.Bypass)
	if before.Tier != after.Tier && after.Tier != "" {
		said = append(said, "tier "+after.Tier)
	} else if before.Tier != after.Tier {
		said = append(said, "no longer tier "+before.Tier)
	}
	said = append(said, listOverrideChanges(before.Overrides, after.Overrides)...)
	switch {
	case e.Action == "consumer.delete":
		said = append([]string{"forgotten"}, said...)
	case len(said) == 0:
		said = []string{"put again as it was"}
	}
	return "consumer " + strings.TrimPrefix(e.Resource, "consumers/") + ": " + strings.Join(said, "; ")
}

func batchSentence(e *gen.AuditEntry) string {
	var written struct{ Consumers int }
	readInto(e.After, &written)
	done, known := map[string]string{"consumers.put": "put", "consumers.restore": "given back"}[e.Action]
	if !known || e.After == nil {
		return ""
	}
	return plural(max(written.Consumers, 1), "consumer", "consumers") + " " + done
}

// appendMarkChange adds the change of a ban or a bypass.
func appendMarkChange(said []string, what string, before, after *consumers.Mark) []string {
	switch {
	case after == nil && before != nil:
		return append(said, "no longer "+what)
	case after != nil && (before == nil || *before != *after):
		return append(said, what+" "+markText(after.Reason, optionalTime(after.Expires)))
	}
	return said
}

// listOverrideChanges names the limits of a consumer's own that have changed.
func listOverrideChanges(before, after []consumers.Override) (said []string) {
	find := func(list []consumers.Override, policy string) (o consumers.Override, found bool) {
		at := slices.IndexFunc(list, func(o consumers.Override) bool { return o.Policy == policy })
		if at < 0 {
			return o, false
		}
		return list[at], true
	}
	for _, o := range after {
		limit := limitsText(o)
		if was, found := find(before, o.Policy); !found || limitsText(was) != limit || was.Mark != o.Mark {
			end := markText(o.Reason, optionalTime(o.Expires))
			said = append(said, fmt.Sprintf("limit under %s %s %s", o.Policy, limit, end))
		}
	}
	for _, o := range before {
		if _, found := find(after, o.Policy); !found {
			said = append(said, "the policy's limit under "+o.Policy)
		}
	}
	return said
}

func limitsText(o consumers.Override) string {
	if len(o.Limits) == 0 {
		return "unlimited"
	}
	text, err := json.Marshal(o.Limits)
	if err != nil {
		return err.Error()
	}
	return overrideText(text)
}

// optionalTime returns a pointer to the time; nil for the zero time.
func optionalTime(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}
