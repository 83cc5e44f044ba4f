package api

import "testing"

func TestLaxTypes(t *testing.T) {
	f, err := parseBody([]byte(`{"a":"7","b":7.0,"c":true,"d":"yes","e":0,"f":"0.5","g":null,"model":"x","model":"y"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := [3]int{f.integer("a", 0), f.integer("b", 0), f.integer("c", 0)}; got != [3]int{7, 7, 1} {
		t.Errorf("integers %v", got)
	}
	if !f.boolean("d") || f.boolean("e") || f.boolean("nothing") {
		t.Error("booleans")
	}
	if f.float("f", 0) != 0.5 || f.float("g", 3) != 3 || f.integer("g", 4) != 4 {
		t.Error("floats and defaults")
	}
	if got := f.text("model", ""); got != "y" {
		t.Errorf("of two members %q counted, want the last", got)
	}
	if err := f.err(); err != nil {
		t.Errorf("problems: %s", err.Message)
	}
}

func TestLoneSurrogate(t *testing.T) {
	for body, want := range map[string]bool{
		`"\ud83d\ude00"`: false, `"\ud83d"`: true, `"\ude00"`: true, `"\ud83dx"`: true, `"\\ud83d"`: false, `"\\\ud83d"`: true, `"\u00e9"`: false, `"\u`: false,
	} {
		if got := loneSurrogate([]byte(body)); got != want {
			t.Errorf("%s: %v", body, got)
		}
	}
}
