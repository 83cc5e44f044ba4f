package replay

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/replay"
)

func TestSplits(t *testing.T) {
	for n, want := range map[int]string{
		1:  "1B",
		2:  "2B 1P+1D",
		4:  "4B 1P+3D 2P+2D 3P+1D",
		24: "24B 3P+21D 6P+18D 9P+15D 12P+12D 14P+10D 17P+7D 20P+4D 23P+1D",
	} {
		var all []string
		for _, p := range splits(n) {
			all = append(all, p.String())
		}
		if got := strings.Join(all, " "); got != want {
			t.Errorf("%d engines: %s, want %s", n, got, want)
		}
	}
}

func TestPartsOfATrace(t *testing.T) {
	r := &replay.Result{}
	for i := range 100 {
		r.Records = append(r.Records, replay.Record{TTFT: time.Duration(i) * time.Millisecond})
	}
	parts := partsOf(r, replay.SLO{TTFT: 44 * time.Millisecond})
	if len(parts) != pieces || parts[0] != 1 || parts[4] != 0.5 || parts[9] != 0 {
		t.Errorf("parts %v", parts)
	}
	if b := interval([]float64{1, 2, 3}); b.Mean != 2 || math.Abs(b.High-2-2.920/math.Sqrt(3)) > 1e-9 || math.Abs(b.High+b.Low-2*b.Mean) > 1e-9 {
		t.Errorf("the mean of 1, 2, 3 is %+v", b)
	}
}

// advised returns the advice for a workload on llama-70b, four GPUs an engine, as JSON and as text.
func advised(t *testing.T, shape string, speed float64, gpus int, ttft time.Duration) (split bool, text string) {
	t.Helper()
	a := advice{hardwareFlags{GPUs: gpus, Engine: "llama-70b-h100-tp4", Bandwidth: 50},
		adviceLoad{TTFT: ttft, TPOT: 50 * time.Millisecond, Speed: speed, Seed: 1, Shape: shape, Requests: 400}, adviceOutput{}}
	s := a.settings()
	all, err := a.try(t.Context(), s, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c := a.conclude(s, all)
	var b, words bytes.Buffer
	if err := c.json(&b); err != nil {
		t.Fatal(err)
	}
	if err := c.text(&words); err != nil {
		t.Fatal(err)
	}
	var said struct {
		Split bool `json:"split"`
		Best  struct {
			Pool    string  `json:"pool"`
			Goodput between `json:"goodput"`
		} `json:"best"`
		Tried []struct{} `json:"tried"`
	}
	if err := json.Unmarshal(b.Bytes(), &said); err != nil {
		t.Fatal(err)
	}
	if g := said.Best.Goodput; len(said.Tried) != len(all) || g.Low > g.Mean || g.High < g.Mean || said.Split == strings.HasSuffix(said.Best.Pool, "B") && len(all) > 1 {
		t.Errorf("%s: %+v", shape, said)
	}
	return said.Split, words.String()
}

// TestAdvice: short prompts at a low load need no split; long ones at a load that shared engines do not bear do; and one engine cannot be split.
func TestAdvice(t *testing.T) {
	if split, text := advised(t, "sharegpt", 0.2, 16, time.Second); split || !strings.HasPrefix(text, "Do not split: 4 shared engines (4B)") {
		t.Errorf("short prompts:\n%s", text)
	}
	if split, text := advised(t, "pd-guide", 0.25, 24, 3*time.Second); !split || !strings.HasPrefix(text, "Split: ") || !strings.Contains(text, "percentage points more") {
		t.Errorf("long prompts:\n%s", text)
	}
	if split, text := advised(t, "sharegpt", 0.2, 4, time.Second); split || !strings.HasPrefix(text, "4 GPUs are one engine llama-70b-h100-tp4: it cannot be split.") {
		t.Errorf("one engine:\n%s", text)
	}
}
