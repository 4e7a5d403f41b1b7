// Package transform is added by the build to the folder of this name in TinyGo. It lets the
// compiler make functions small that no request waits for, and leaves the other functions as fast
// as before.
package transform

import (
	"fmt"
	"slices"
	"strings"

	"tinygo.org/x/go-llvm"
)

// cold maps the beginnings of functions' names to whether the functions are cold; the longest
// beginning that fits counts. Functions are cold if they run when a policy set arrives, in a tick
// or for a report. A function that requests call too, even a getter, is not cold.
var cold = map[string]bool{
	"shared/policy.":            true,
	"shared/policy.AppendSpan":  false,
	"shared/policy.Commit.By":   false,
	"shared/policy.Contains":    false,
	"shared/policy.Counting.":   false,
	"shared/policy.CutField":    false,
	"shared/policy.FormatSpan":  false,
	"shared/policy.IsJSON":      false,
	"shared/policy.Limit.":      false,
	"shared/policy.Mode.":       false,
	"shared/policy.NewLimit":    false,
	"shared/policy.OnFailure.":  false,
	"shared/policy.ParseCost":   false,
	"shared/policy.ParseFigure": false,
	"shared/policy.Part.":       false,
	"shared/policy.PartKind.":   false,
	"shared/policy.Policy.":     false,
	"shared/policy.Source.":     false,
	"shared/policy.SourceKind.": false,
	"shared/policy.Unreserved":  false,

	"shared/ipaddr.Addr.AppendIPv6": true,

	"shared/text.Cut":      true,
	"shared/text.Trim":     true,
	"shared/text.Unhex":    true,
	"shared/text.HexDigit": true,

	"shared/spelling.":               true,
	"shared/spelling.AppendPath":     false,
	"shared/spelling.AppendPathByte": false,
	"shared/spelling.IsHeader":       false,

	"shared/wire.":             true,
	"shared/wire.FindOverride": false,
	"shared/wire.Ref.":         false,
	"shared/wire.cursor.":      false,
	"shared/wire.put":          false,
	"shared/wire.putPolicy":    true,

	"shared/classify.Classifier.isAppended": true,
	"shared/classify.Classifier.forwarded":  true,
	"shared/classify.isOwn":                 true,
	"shared/classify.lastEntry":             true,

	"shared/match.Matcher.Identify":   true,
	"shared/match.caller.":            true,
	"shared/match.collector.":         true,
	"shared/match.encoder.":           true,
	"shared/match.encoder.hash":       false,
	"shared/match.encoder.valuesAt":   false,
	"shared/match.encoder.readHeader": false,
	"shared/match.enforcement.":       true,
	"shared/match.find":               true,
	"shared/match.put":                true,
	"shared/match.lookUpConsumer":     true,
	"shared/match.single":             true,

	"shared/match.Index.Begin":    true,
	"shared/match.Index.Continue": true,
	"shared/match.Index.Enforce":  true,
	"shared/match.Index.begin":    true,
	"shared/match.Index.bind":     true,
	"shared/match.Index.clear":    true,
	"shared/match.Index.end":      true,
	"shared/match.Index.load":     true,
	"shared/match.Index.plant":    true,
	"shared/match.Index.addPart":  true,
	"shared/match.Index.reserve":  true,
	"shared/match.Index.resolve":  true,
	"shared/match.trie.add":       true,
	"shared/match.trie.capture":   true,
	"shared/match.trie.child":     true,
	"shared/match.trie.entryList": true,
	"shared/match.trie.grow":      true,
	"shared/match.trie.insert":    true,
	"shared/match.trie.put":       true,
	"shared/match.trie.reserve":   true,
	"shared/match.trie.reset":     true,

	"filter/internal/remote/configsync.":             true,
	"filter/internal/remote/configsync.Sync.Age":     false,
	"filter/internal/remote/configsync.Sync.Leads":   false,
	"filter/internal/remote/configsync.Sync.Rules":   false,
	"filter/internal/remote/configsync.Sync.Tallied": false,

	"filter/internal/remote/consumers.":                 true,
	"filter/internal/remote/consumers.Cache.Changed":    false,
	"filter/internal/remote/consumers.Cache.Exceptions": false,
	"filter/internal/remote/consumers.Cache.Find":       false,
	"filter/internal/remote/consumers.Cache.Revision":   false,
	"filter/internal/remote/consumers.Cache.Synced":     false,
	"filter/internal/remote/consumers.Cache.want":       false,
	"filter/internal/remote/consumers.contains":         false,
	"filter/internal/remote/consumers.record.":          false,
	"filter/internal/remote/consumers.table.find":       false,
	"filter/internal/remote/consumers.table.open":       false,

	"filter/internal/remote/enforcement.":              true,
	"filter/internal/remote/enforcement.View.Changed":  false,
	"filter/internal/remote/enforcement.View.Revision": false,

	"filter/internal/remote/leasing.Client.Flush":         true,
	"filter/internal/remote/leasing.Client.fail":          true,
	"filter/internal/remote/leasing.Client.send":          true,
	"filter/internal/remote/leasing.Client.takeIn":        true,
	"filter/internal/remote/leasing.Client.takeInC":       false,
	"filter/internal/remote/leasing.Client.takeInS":       false,
	"filter/internal/remote/leasing.queue.gatherLines":    true,
	"filter/internal/remote/leasing.reports.takeInAnswer": true,
	"filter/internal/remote/leasing.reports.gather":       true,
	"filter/internal/remote/leasing.agenda.reschedule":    true,

	"filter/internal/decide/limiter.Limiter.SettleTrials": true,
	"filter/internal/decide/limiter.Limiter.await":        true,
	"filter/internal/decide/limiter.Limiter.endTrial":     true,
	"filter/internal/decide/limiter.Limiter.free":         true,
	"filter/internal/decide/limiter.Limiter.grantTrial":   true,
	"filter/internal/decide/limiter.Limiter.addLooks":     true,
	"filter/internal/decide/limiter.Limiter.look":         true,
	"filter/internal/decide/limiter.Limiter.newTrial":     true,
	"filter/internal/decide/limiter.Limiter.try":          true,
	"filter/internal/decide/limiter.trial.lose":           true,

	"filter/internal/envoy/plugin.pluginContext.report": true,
	"filter/internal/envoy/plugin.pluginContext.start":  true,
	"filter/internal/envoy/plugin.pluginContext.work":   true,
	"filter/internal/envoy/plugin.readConfiguration":    true,

	"filter/internal/base/ruleset.Rules.Load": true,

	"internal/reflectlite.": true,
	"strconv.Quote":         true,
	"unicode.":              true,
}

// markCold lets LLVM make cold functions small: it copies a function into them only if that is
// smaller than the call, and copies no cold function into its callers. A line of the table that
// fits no function of the filter is a mistake: the function has another name now.
func markCold(mod llvm.Module) error {
	names := strings.NewReplacer("github.com/weir-proxy/weir/", "", "(", "", "*", "", ")", "")
	found := map[string]bool{}
	for fn := mod.FirstFunction(); !fn.IsNil(); fn = llvm.NextFunction(fn) {
		entry := longest(names.Replace(fn.Name()))
		found[entry] = true
		if cold[entry] && !fn.IsDeclaration() {
			makeSmall(mod.Context(), fn)
		}
	}
	var unused []string
	for entry := range cold {
		if !found[entry] {
			unused = append(unused, entry)
		}
	}
	if isFilter := found["shared/policy."]; !isFilter || len(unused) == 0 {
		return nil
	}
	slices.Sort(unused)
	return fmt.Errorf("cold.go: no function begins with %q", unused)
}

// longest returns the longest beginning of a name that the table has.
func longest(name string) string {
	for n := len(name); n > 0; n-- {
		if _, ok := cold[name[:n]]; ok {
			return name[:n]
		}
	}
	return ""
}

func makeSmall(ctx llvm.Context, fn llvm.Value) {
	for _, attribute := range []string{"optsize", "minsize"} {
		fn.AddFunctionAttr(ctx.CreateEnumAttribute(llvm.AttributeKindID(attribute), 0))
	}
	fn.AddFunctionAttr(ctx.CreateStringAttribute("function-inline-threshold", "10"))
}
