package redisstore

import (
	"cmp"
	"context"
	_ "embed" // for the script
	"encoding/hex"
	"slices"
	"strconv"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
)

// auditScript is the first part of every script that makes a change with an author.
//
//go:embed scripts/audit.lua
var auditScript string

// keptOfBuckets is the number of audit entries that are kept about the buckets of one tag.
const keptOfBuckets = audit.Kept / tagCount

// auditKey returns the key of the audit list of a tag: the changes that scripts made to keys with
// that tag. The tags are meta, the tags of topics, and the tags of buckets.
func auditKey(tag string) string { return "weir:{" + tag + "}:audit" }

var keyMetaAudit = auditKey("meta")

// auditTags are the tags that have an audit list.
var auditTags = func() []string {
	tags := []string{"meta"}
	for _, t := range docs.Topics {
		tags = append(tags, t.Tag)
	}
	for tag := range byte(tagCount) {
		tags = append(tags, hex.EncodeToString([]byte{tag}))
	}
	return tags
}()

// Audit implements audit.Store. A list that cannot be read is an error, so that no entry is left
// out unseen.
func (s *Store) Audit(ctx context.Context, before string, limit int) ([]audit.Entry, error) {
	from := "+inf"
	if before != "" {
		stamp, err := audit.Stamp(before)
		if err != nil {
			return nil, err
		}
		from = strconv.FormatInt(stamp, 10)
	}
	// Read the newest entries of each list.
	keys := make([]string, len(auditTags))
	for i, tag := range auditTags {
		keys[i] = auditKey(tag)
	}
	// Read one entry more than asked for: each list may have an entry of this very moment.
	lists, err := s.runForEach(ctx, keys, "ZRANGE", from, "-inf", "BYSCORE", "REV", "LIMIT", 0, limit+1, "WITHSCORES")
	if err != nil {
		return nil, err
	}
	type kept struct {
		at          int64
		stored, tag string
	}
	// Sort the entries of all lists by time.
	var found []kept
	for i, list := range lists {
		for at := 0; at+1 < len(list); at += 2 {
			score, err := strconv.ParseFloat(list[at+1], 64)
			if err != nil {
				return nil, err
			}
			found = append(found, kept{int64(score), list[at], auditTags[i]})
		}
	}
	slices.SortFunc(found, func(a, b kept) int { return cmp.Compare(b.at, a.at) })
	// Decode the newest entries, as far as asked for.
	var all []audit.Entry
	for i, one := range found {
		// Decoding takes most of the time, and the lists have far more entries than asked for.
		if len(all) >= limit && one.at < found[i-1].at {
			break
		}
		e := audit.Read(one.tag, one.at, one.stored)
		if before == "" || e.ID < before {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b audit.Entry) int { return cmp.Compare(b.ID, a.ID) })
	return all[:min(len(all), limit)], nil
}
