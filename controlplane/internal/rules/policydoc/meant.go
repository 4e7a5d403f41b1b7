package policydoc

import (
	"regexp"
	"strings"
)

// Words of other programs, and what is meant by them here. Without them the nearest word by its
// letters would be guessed, and off is nearer to on than enforce.
var (
	aShare   = regexp.MustCompile(`^([1-9][0-9]?)%?$`)
	inLimit  = regexp.MustCompile(`\blimit(?:s\.[^.\[]+)?(?:\[\d+\])?\.([a-z_]+)$`)
	aHeader  = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)+$`)
	meanings = map[string]map[string]string{
		"mode": {
			"global": "leased", "distributed": "leased", "shared": "leased", "central": "leased", "redis": "leased",
			"exact": "strict", "sync": "strict", "async": "optimistic", "eventual": "optimistic", "memory": "local",
		},
		"enforcement": {
			"on": "enforce", "true": "enforce", "enabled": "enforce", "active": "enforce", "enforced": "enforce",
			"false": "off", "disabled": "off", "none": "off", "dry_run": "shadow", "dry-run": "shadow",
			"log": "shadow", "monitor": "shadow", "report": "shadow",
		},
		"partition": {
			"ip": "client_ip", "address": "client_ip", "remote_addr": "client_ip", "remote_address": "client_ip",
			"remote_ip": "client_ip", "user": "consumer", "user_id": "consumer", "key": "consumer",
			"api_key": "consumer", "customer": "consumer",
		},
	}
)

// meant is the word of a field for another one, in small letters; empty if none is known.
func meant(path, word string) string {
	field, _, _ := strings.Cut(path[strings.LastIndexByte(path, '.')+1:], "[")
	switch share := aShare.FindStringSubmatch(word); {
	case meanings[field][word] != "":
		return meanings[field][word]
	case field == "enforcement" && share != nil:
		return "{enforce: " + share[1] + "}"
	}
	return ""
}

// headerFor is the part of a partition key that a word like x-api-key stands for; empty if none is.
func headerFor(path, word string) string {
	if strings.Contains(path[strings.LastIndexByte(path, '.')+1:], "partition[") && aHeader.MatchString(word) {
		return "header:" + word
	}
	return ""
}

// sameAs is the field of a limit that an unknown one stands for; empty if none is known.
func sameAs(path string) string {
	field := inLimit.FindStringSubmatch(path)
	if field == nil {
		return ""
	}
	switch field[1] {
	case "rate", "requests", "count":
		return ": did you mean quota?"
	case "per", "period", "interval", "duration":
		return ": did you mean window?"
	}
	return ""
}
