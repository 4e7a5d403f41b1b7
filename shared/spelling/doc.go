// Package spelling gives the values of requests one spelling, where servers read several spellings
// as the same value. A client that spells its key or its path in another way is still the same
// caller at the same place. docs/choose/identity.md explains the rules. testdata/spellings.txt has
// them as rows, which tests check.
package spelling
