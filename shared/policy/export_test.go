package policy

// ParseInt is parseInt.
var ParseInt = parseInt
