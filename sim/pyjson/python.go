package pyjson

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Float is a number that always has a fraction in JSON.
type Float float64

// MarshalJSON implements json.Marshaler; it has no error.
func (v Float) MarshalJSON() ([]byte, error) { return []byte(FormatFloat(float64(v))), nil }

// FormatFloat returns the Python representation of a float.
func FormatFloat(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e16 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	if abs := math.Abs(v); abs >= 1e-4 && abs < 1e16 {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// Quote returns the Python representation of a string: in single quotes, unless the string has some.
func Quote(s string) string {
	quote := "'"
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = `"`
	} else {
		s = strings.ReplaceAll(s, "'", `\'`)
	}
	return quote + strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(s) + quote
}

// Describe returns how a validation error shows the value that a client sent.
func Describe(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	switch v := v.(type) {
	case nil:
		return "None"
	case string:
		return v
	case bool:
		return map[bool]string{true: "True", false: "False"}[v]
	case map[string]any:
		return fmt.Sprintf("<dict of %d items>", len(v))
	case []any:
		return fmt.Sprintf("<list of %d items>", len(v))
	}
	return strings.TrimSpace(string(raw))
}

// Truthy reports whether a decoded JSON value is true in a Python condition. Numbers are json.Number.
func Truthy(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case json.Number:
		f, err := v.Float64()
		return err != nil || f != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}
