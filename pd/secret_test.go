package pd_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestParseSecrets(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       pd.Secrets
		err        string
	}{
		{"one", "open-sesame\n", pd.Secrets{"open-sesame"}, ""},
		{"a change under way", "new\r\n\n old \n", pd.Secrets{"new", "old"}, ""},
		{"nothing", " \n\t\n", nil, "empty"},
		{"two words", "open sesame", pd.Secrets{"open sesame"}, ""},
		{"a header of its own", "a\rx-more: b", nil, "control characters"},
		{"no ASCII", "sésame", nil, "control characters"},
		{"the longest", strings.Repeat("a", 1024), pd.Secrets{strings.Repeat("a", 1024)}, ""},
		{"too long", strings.Repeat("a", 1025), nil, "longer than 1024"},
		{"too many", strings.Repeat("a\n", pd.MaxSecrets+1), nil, "more than 8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := pd.ParseSecrets([]byte(c.text))
			if !slices.Equal(got, c.want) || (err == nil) != (c.err == "") {
				t.Fatalf("got %q, %v", got, err)
			}
			if err != nil && (!strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "sesame")) {
				t.Errorf("error %q, want %q and no secret", err, c.err)
			}
		})
	}
}

func TestSecretsMatch(t *testing.T) {
	secrets := pd.Secrets{"new", "old"}
	for _, c := range []struct {
		name   string
		values []string
		want   bool
	}{
		{"the newest", []string{"new"}, true},
		{"one that is going", []string{"old"}, true},
		{"none", nil, false},
		{"empty", []string{""}, false},
		{"another", []string{"odd"}, false},
		{"the beginning", []string{"ne"}, false},
		{"more", []string{"newer"}, false},
		{"twice", []string{"new", "new"}, false},
		{"a list", []string{"new, old"}, false},
	} {
		if got := secrets.Match(c.values); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if (pd.Secrets{}).Match([]string{""}) {
		t.Error("no secret matches an empty one")
	}
}
