package pd_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestParseMode(t *testing.T) {
	cases := []struct {
		name   string
		values []string
		mode   pd.Mode
	}{
		{"no header", nil, pd.ModeAuto},
		{"auto", []string{"auto"}, pd.ModeAuto},
		{"force", []string{"force"}, pd.ModeForce},
		{"bypass", []string{"bypass"}, pd.ModeBypass},
		{"force with fallback", []string{"force;fallback"}, pd.ModeForceFallback},
		{"a blank before the parameter", []string{"force; fallback"}, pd.ModeForceFallback},
		{"several blanks", []string{"  force;   fallback  "}, pd.ModeForceFallback},
		{"true spelled out", []string{"force;fallback=?1"}, pd.ModeForceFallback},
		{"false spelled out", []string{"force;fallback=?0"}, pd.ModeForce},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if mode, err := pd.ParseMode(c.values); err != nil || mode != c.mode {
				t.Errorf("got %s, %v", mode, err)
			}
		})
	}
}

func TestParseModeRefuses(t *testing.T) {
	cases := []struct {
		name   string
		values []string
	}{
		{"an empty value", []string{""}},
		{"blanks only", []string{"  "}},
		{"an unknown word", []string{"remote"}},
		{"capitals", []string{"Force"}},
		{"a string instead of a token", []string{`"force"`}},
		{"two lines", []string{"force", "force"}},
		{"two lines that agree on nothing", []string{"auto", "bypass"}},
		{"a list", []string{"force, bypass"}},
		{"an unknown parameter", []string{"force;strict"}},
		{"a second parameter", []string{"force;fallback;strict"}},
		{"the parameter twice", []string{"force;fallback;fallback"}},
		{"no parameter after the semicolon", []string{"force;"}},
		{"a blank before the semicolon", []string{"force ;fallback"}},
		{"fallback with a token", []string{"force;fallback=true"}},
		{"fallback with a number", []string{"force;fallback=1"}},
		{"fallback with nothing", []string{"force;fallback="}},
		{"fallback in capitals", []string{"force;Fallback"}},
		{"auto with a parameter", []string{"auto;fallback"}},
		{"bypass with a parameter", []string{"bypass;fallback"}},
		{"a tab", []string{"force;\tfallback"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			mode, err := pd.ParseMode(c.values)
			if err == nil || mode != pd.ModeAuto {
				t.Fatalf("got %s, %v", mode, err)
			}
			for _, word := range []string{pd.HeaderMode, "auto", "force", "force;fallback", "bypass"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not name %s", err, word)
				}
			}
		})
	}
}

func TestModeRoundTrip(t *testing.T) {
	for mode := pd.ModeAuto; mode <= pd.ModeBypass; mode++ {
		if back, err := pd.ParseMode([]string{mode.String()}); err != nil || back != mode {
			t.Errorf("%s comes back as %s, %v", mode, back, err)
		}
	}
}
