package pd

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
)

// Secrets are shared by a picker and the sidecars of its pool, the newest first. The picker sends the first one, sidecars
// accept each. To change a secret without an outage, write the new one before the old one, and drop the old one when all
// components have read the file again.
type Secrets []string

const (
	// MaxSecrets is how many secrets may be valid at once: there is more than one only during a change.
	MaxSecrets = 8
	// maxSecretLength is in bytes. Secrets travel in a header of each request.
	maxSecretLength = 1024
)

// ParseSecrets reads a file of secrets, one a line. Blank lines do not count. The error never contains a secret.
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

// Match reports whether the values of a header are one, and a secret. How long that takes tells nothing but lengths.
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
