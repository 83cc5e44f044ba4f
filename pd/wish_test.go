package pd_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestParseWish(t *testing.T) {
	cases := []struct {
		name   string
		values []string
		wish   pd.Wish
	}{
		{"no header", nil, pd.WishAuto},
		{"auto", []string{"auto"}, pd.WishAuto},
		{"force", []string{"force"}, pd.WishForce},
		{"bypass", []string{"bypass"}, pd.WishBypass},
		{"force with fallback", []string{"force;fallback"}, pd.WishForceFallback},
		{"a blank before the parameter", []string{"force; fallback"}, pd.WishForceFallback},
		{"several blanks", []string{"  force;   fallback  "}, pd.WishForceFallback},
		{"true spelled out", []string{"force;fallback=?1"}, pd.WishForceFallback},
		{"false spelled out", []string{"force;fallback=?0"}, pd.WishForce},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if wish, err := pd.ParseWish(c.values); err != nil || wish != c.wish {
				t.Errorf("got %s, %v", wish, err)
			}
		})
	}
}

func TestParseWishRefuses(t *testing.T) {
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
			wish, err := pd.ParseWish(c.values)
			if err == nil || wish != pd.WishAuto {
				t.Fatalf("got %s, %v", wish, err)
			}
			for _, word := range []string{pd.HeaderWish, "auto", "force", "force;fallback", "bypass"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not name %s", err, word)
				}
			}
		})
	}
}

func TestWishRoundTrip(t *testing.T) {
	for wish := pd.WishAuto; wish <= pd.WishBypass; wish++ {
		if back, err := pd.ParseWish([]string{wish.String()}); err != nil || back != wish {
			t.Errorf("%s comes back as %s, %v", wish, back, err)
		}
	}
}
