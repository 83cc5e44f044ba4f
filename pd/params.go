package pd

import (
	"errors"
	"fmt"
	"strings"
)

// maxParamValue bounds the header values that splitParams reads (bytes). Valid ones are far shorter.
const maxParamValue = 512

// splitParams splits "head;name=value;flag" into its head and parameters, and calls set for each parameter, with an empty
// value for a flag. A repeated parameter is an error, as are empty names: Tandem's own components write these headers, so any
// other form is forged, or from a version with another format.
func splitParams(s string, set func(name, value string) error) (head string, err error) {
	if len(s) > maxParamValue {
		return "", fmt.Errorf("longer than %d bytes", maxParamValue)
	}
	head, rest, more := strings.Cut(s, ";")
	var seen []string
	for more {
		var p string
		p, rest, more = strings.Cut(rest, ";")
		name, value, _ := strings.Cut(strings.Trim(p, " "), "=")
		if name == "" {
			return "", errors.New("empty parameter")
		}
		for _, s := range seen {
			if s == name {
				return "", fmt.Errorf("parameter %q twice", name)
			}
		}
		seen = append(seen, name)
		if err := set(name, value); err != nil {
			return "", fmt.Errorf("parameter %q: %w", name, err)
		}
	}
	return strings.Trim(head, " "), nil
}

var errUnknownParam = errors.New("unknown")
