package pyjson

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzFindSyntaxError: every body that Go's decoder refuses has a position and a message, and no other body has.
func FuzzFindSyntaxError(f *testing.F) {
	for _, seed := range []string{`{`, `{"a":1}`, `[1,]`, `"\u12"`, `{"a" 1}`, "\"\n\"", `nul`, `1e`, ` `, `{"a":"\q"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		position, message := FindSyntaxError(body)
		if valid := json.Valid(body); valid != (message == "") {
			t.Fatalf("%q: valid is %v, message %q", body, valid, message)
		}
		if position < 0 || position > len(body) {
			t.Fatalf("%q: position %d", body, position)
		}
	})
}

func TestTruthy(t *testing.T) {
	for raw, want := range map[string]bool{
		`null`: false, `false`: false, `0`: false, `0.0`: false, `""`: false, `[]`: false, `{}`: false,
		`true`: true, `1`: true, `"no"`: true, `[0]`: true, `{"a":0}`: true,
	} {
		d := json.NewDecoder(strings.NewReader(raw))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			t.Fatal(err)
		}
		if got := Truthy(v); got != want {
			t.Errorf("%s counts as %v", raw, got)
		}
	}
}
