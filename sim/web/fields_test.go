package web_test

import (
	"testing"

	"github.com/tandem-serving/tandem/sim/web"
)

func TestLaxTypes(t *testing.T) {
	f := web.ReadObject([]byte(`{"a":"7","b":7.0,"c":true,"d":"yes","e":0,"f":"0.5","g":null,"model":"x","model":"y"}`))
	if got := [3]int{f.Integer("a", 0), f.Integer("b", 0), f.Integer("c", 0)}; got != [3]int{7, 7, 1} {
		t.Errorf("integers %v", got)
	}
	if !f.Boolean("d") || f.Boolean("e") || f.Boolean("nothing") {
		t.Error("booleans")
	}
	if f.Float("f", 0) != 0.5 || f.Float("g", 3) != 3 || f.Integer("g", 4) != 4 {
		t.Error("floats and defaults")
	}
	if got := f.Text("model", ""); got != "y" {
		t.Errorf("of two members %q counted, want the last", got)
	}
	if len(f.Problems) != 0 {
		t.Errorf("problems: %v", f.Problems)
	}
}

func TestLoneSurrogate(t *testing.T) {
	for body, want := range map[string]bool{
		`"\ud83d\ude00"`: false, `"\ud83d"`: true, `"\ude00"`: true, `"\ud83dx"`: true, `"\\ud83d"`: false, `"\\\ud83d"`: true, `"\u00e9"`: false, `"\u`: false,
	} {
		if got := web.LoneSurrogate([]byte(body)); got != want {
			t.Errorf("%s: %v", body, got)
		}
	}
}
