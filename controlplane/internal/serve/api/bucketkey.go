package api

import (
	"cmp"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// bucketKey is the partition key of a policy that a request means.
type bucketKey struct {
	by        *policies.Compiled
	policy    *policy.Policy
	partition match.Partition
	// consumer is the consumer of the key; nil if the partition has no consumer.
	consumer *keyhash.Key
	// values are the values of the partition's parts, and hash is the hash of the key.
	values []match.Value
	hash   string
	// drafted is the same key in the version of a rollout; nil without a rollout, or if that
	// version has no such key.
	drafted *bucketKey
	// only is the version that has the key, while another one in force has not; 0 otherwise.
	only uint64
}

// hashes returns the hashes of the key, each once.
func (k bucketKey) hashes() []string {
	if k.drafted == nil || k.drafted.hash == k.hash {
		return []string{k.hash}
	}
	return []string{k.hash, k.drafted.hash}
}

// areLocal reports whether each node counts by itself, in all versions in force.
func (k bucketKey) areLocal() bool {
	return k.policy.Mode == policy.ModeLocal && (k.drafted == nil || k.drafted.policy.Mode == policy.ModeLocal)
}

func keyResource(k bucketKey) string { return "keys/" + k.policy.Name + "/" + k.hash }

// policyNamed finds a policy by its name in the versions in force. The version of the nodes outside
// the rollout comes first.
func (s *server) policyNamed(name string) (by *policies.Compiled, p *policy.Policy, err error) {
	err = s.eachNamed(name, func(c *policies.Compiled, one *policy.Policy) {
		if by == nil {
			by, p = c, one
		}
	})
	return by, p, err
}

// eachNamed hands over the policy of a name in each version in force that has it.
func (s *server) eachNamed(name string, each func(by *policies.Compiled, p *policy.Policy)) error {
	active, _ := s.config.Policies.Active()
	if err := s.unreadError(); active.Current == nil && err != nil {
		return err
	}
	if !active.Knows(name) {
		return policydoc.NoPolicy(name, append(policyNames(active.Current), policyNames(active.Draft)...))
	}
	for _, by := range []*policies.Compiled{active.Current, active.Draft} {
		if by == nil {
			continue
		}
		if p, ok := by.Policy(name); ok {
			each(by, p)
		}
	}
	return nil
}

// findKey finds out which partition key is meant, in each version in force.
func (s *server) findKey(name string, params gen.GetKeyParams) (k bucketKey, err error) {
	var found []bucketKey
	var wrong error
	err = s.eachNamed(name, func(by *policies.Compiled, p *policy.Policy) {
		secret, err := s.config.Hub.Secret()
		var values []match.Value
		if err == nil {
			values, err = partitionValues(by.Set, p, params.Partition, params.Source)
		}
		if err == nil {
			found = append(found, newKey(secret, by, p, values))
		}
		wrong = cmp.Or(wrong, err)
	})
	if err != nil || len(found) == 0 {
		return k, cmp.Or(err, wrong)
	}
	return s.joinKeys(found), nil
}

// joinKeys combines the keys that the versions in force have. If only one of two versions has the
// key, the field only names that version.
func (s *server) joinKeys(found []bucketKey) (k bucketKey) {
	if k = found[0]; len(found) > 1 {
		k.drafted = &found[1]
	} else if active, _ := s.config.Policies.Active(); active.Draft != nil {
		k.only = k.by.Version.Number
	}
	return k
}

// newKey returns the key of requests with these values for the parts of the policy's partition.
func newKey(secret [16]byte, by *policies.Compiled, p *policy.Policy, values []match.Value) bucketKey {
	k := bucketKey{by: by, policy: p, partition: match.NewPartition(secret, by.Set, p, values),
		consumer: consumerAmong(secret, p, values), values: values}
	hash := k.partition.Key()
	k.hash = hash.String()
	return k
}

// consumerAmong returns the consumer among the values of a partition; nil if there is none.
func consumerAmong(secret [16]byte, p *policy.Policy, values []match.Value) *keyhash.Key {
	for i, part := range p.Partition {
		if v := values[i]; part.Kind == policy.PartConsumer && !v.Absent {
			key := match.ConsumerKey(secret, v.Source, string(v.Text))
			return (*keyhash.Key)(&key)
		}
	}
	return nil
}
