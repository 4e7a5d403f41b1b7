package match

import "github.com/weir-proxy/weir/shared/keyhash"

// WideKey is the key by which the penalties of a policy that hold under every policy know a
// consumer, given by its ConsumerKey.
func WideKey(secret [16]byte, policy string, consumer keyhash.Key) keyhash.Key {
	return hashed(secret, append(putText([]byte{penaltyFormat}, []byte(policy)), consumer[:]...))
}

// ShadowOf is the key by which a penalty in shadow knows the caller of a key.
func ShadowOf(k keyhash.Key) keyhash.Key {
	k[0] ^= shadowMark
	return k
}
