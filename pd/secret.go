package pd

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
)

// Secrets are shared by a picker and the sidecars of its pool, newest first. The picker sends the first one; sidecars accept
// all of them. To change a secret without an outage, write the new one before the old one, and remove the old one when all
// components have read the file again.
type Secrets []string

const (
	// MaxSecrets is the most secrets that may be valid at once. More than one is needed only during a change.
	MaxSecrets = 8
	// maxSecretLength bounds a secret (bytes): it travels in a header of each request.
	maxSecretLength = 1024
)

// ParseSecrets parses a file of secrets, one per line. It ignores blank lines. The error never contains a secret.
func ParseSecrets(text []byte) (Secrets, error) {
	var secrets Secrets
	for line := range strings.SplitSeq(string(text), "\n") {
		secret := strings.TrimSpace(line)
		switch {
		case secret == "":
			continue
		case len(secret) > maxSecretLength:
			return nil, fmt.Errorf("a secret is longer than %d bytes", maxSecretLength)
		case strings.ContainsFunc(secret, func(r rune) bool { return r < ' ' || r > '~' }):
			return nil, errors.New("a secret holds what cannot stand in a header: only ASCII without control characters can")
		case len(secrets) == MaxSecrets:
			return nil, fmt.Errorf("there are more than %d secrets", MaxSecrets)
		}
		secrets = append(secrets, secret)
	}
	if secrets == nil {
		return nil, errors.New("it is empty")
	}
	return secrets, nil
}

// Match reports whether a header has one value, which is a secret. Its duration depends on lengths only.
func (s Secrets) Match(values []string) bool {
	if len(values) != 1 {
		return false
	}
	found := 0
	for _, secret := range s {
		found |= subtle.ConstantTimeCompare([]byte(values[0]), []byte(secret))
	}
	return found == 1
}
