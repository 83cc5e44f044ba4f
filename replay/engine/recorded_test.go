package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// recording is what vLLM's scheduler decided, step by step: testdata/record.py made it, and describes it.
type recording struct {
	Config struct {
		StepTokens  int `json:"step_tokens"`
		Sequences   int
		BlockTokens int `json:"block_tokens"`
		Blocks      int
	}
	Requests []struct {
		Step, Prompt, Output int
		Parts                []uint64
	}
	Steps []recordedStep
}

// recordedStep is one step, after scheduling. Requests are numbers.
type recordedStep struct {
	Scheduled        [][2]int // request, tokens
	Running, Waiting []int
	Free             int // blocks
}

func (s recordedStep) String() string {
	return fmt.Sprintf("scheduled %v, running %v, waiting %v, %d blocks free", s.Scheduled, s.Running, s.Waiting, s.Free)
}

// TestRecordedSteps: requests of the recorded lengths, added before the recorded steps, are scheduled as vLLM scheduled them.
func TestRecordedSteps(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var r recording
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			s := stepper{driver: newDriver(t, Config{StepTokens: r.Config.StepTokens, Sequences: r.Config.Sequences, BlockTokens: r.Config.BlockTokens,
				KVTokens: r.Config.Blocks * r.Config.BlockTokens, PartTokens: r.Config.BlockTokens}, flat)}
			for i, want := range r.Steps {
				var arrivals []*Request
				for number, one := range r.Requests {
					if one.Step == i {
						arrivals = append(arrivals, &Request{Prompt: one.Prompt, Output: one.Output, Parts: one.Parts, Of: number})
					}
				}
				if got := s.next(arrivals); got.String() != want.String() {
					t.Fatalf("step %d:\n got %v\nwant %v", i, got, want)
				}
			}
		})
	}
}

// stepper runs an engine step by step, also those that are one event.
type stepper struct {
	*driver
	ended int // steps of the current run
	now   time.Duration
}

// next ends the current step, if there is one, and starts the next one, for which the arrivals came in time.
func (s *stepper) next(arrivals []*Request) recordedStep {
	e := s.engine
	if !e.busy { // all arrivals are there before the step is scheduled
		for _, r := range arrivals {
			e.waiting.push(r)
		}
		e.wake(s.now)
		return s.step()
	}
	s.now = e.run.end(s.ended + 1)
	for _, r := range arrivals {
		e.Add(s.now-1, r)
	}
	if s.ended++; s.ended == e.run.steps {
		s.ended = 0
		e.Advance(s.now)
	}
	return s.step()
}

// step returns the current step.
func (s *stepper) step() (now recordedStep) {
	e := s.engine
	for _, r := range e.running {
		now.Running = append(now.Running, r.Of.(int))
		if r.step > 0 {
			now.Scheduled = append(now.Scheduled, [2]int{r.Of.(int), r.step})
		}
	}
	for _, r := range slices.Concat(e.waiting.all[e.waiting.head:]) {
		now.Waiting = append(now.Waiting, r.Of.(int))
	}
	now.Free = e.cache.free()
	if e.busy {
		now.Free -= e.growth(s.ended + 1)
	}
	return now
}
