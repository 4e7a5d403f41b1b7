package importer

import (
	"encoding/csv"
	"encoding/json"
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// Override has the limits of a consumer that replace the limits of policies.
type Override struct {
	// Consumer is its value, and Source where requests have it, like header:apikey.
	Consumer, Source string
	Policies         []string
	Limits           []Limit
}

// Override notes limits of a consumer. A consumer may come several times.
func (b *Builder) Override(o Override) { b.overrides = append(b.overrides, o) }

// limitDocument and overrideDocument are how the REST interface has them.
type limitDocument struct {
	Quota  int64  `json:"quota"`
	Window string `json:"window"`
}

type overrideDocument struct {
	Policy string          `json:"policy"`
	Limit  []limitDocument `json:"limit"`
}

// consumersCSV returns the overrides as CSV, a line for each consumer.
func (b *Builder) consumersCSV() []byte {
	if len(b.overrides) == 0 {
		return nil
	}
	type consumer struct{ value, source string }
	var order []consumer
	all := map[consumer][]overrideDocument{}
	for _, o := range b.overrides {
		key := consumer{o.Consumer, o.Source}
		if all[key] == nil {
			order = append(order, key)
		}
		var limits []limitDocument
		for _, l := range o.Limits {
			limits = append(limits, limitDocument{l.Quota, policy.FormatSpan(l.Window)})
		}
		for _, name := range o.Policies {
			all[key] = append(all[key], overrideDocument{name, limits})
		}
	}
	var text strings.Builder
	w := csv.NewWriter(&text)
	_ = w.Write([]string{"id", "source", "overrides"}) // Into memory, like all below.
	for _, key := range order {
		overrides, _ := json.Marshal(all[key])
		_ = w.Write([]string{key.value, key.source, string(overrides)})
	}
	w.Flush()
	return []byte(text.String())
}
