package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// Summary is what the command does, for help pages.
const Summary = "measure an OpenAI endpoint under load, and compare remote with local prefill"

// Run is the command. The error is an Exit with CodeMissing if the endpoint cannot be reached, and with CodeFailed if no request was
// answered or --gate was missed. What was measured before an interrupt is reported.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := defaults()
	if _, err := (boot.Program{Summary: "load: " + Summary + "."}).Load(std, &s, args); err != nil {
		return err
	}
	t, err := s.prepare(ctx, std)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer t.close()
	failed := t.run(ctx)
	t.progress.clear()
	result := t.result()
	if err := errors.Join(s.Output.writeRecords(t), s.Output.write(std.Stdout, result)); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	switch {
	case failed != nil:
		return failed
	case result.Interrupted && s.Judge.Gate > 0:
		return errors.New("interrupted: --gate was not judged")
	case result.Interrupted:
		return nil
	}
	return s.Judge.judge(result)
}

// interrupted returns a clean end if the user pressed Ctrl-C before anything was measured.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// judge returns an error if nothing was answered, or if fewer requests of the first side than --gate says met the objective.
func (j *judgeFlags) judge(r *Result) error {
	answered := 0
	for _, p := range r.Points {
		for _, side := range p.Sides {
			answered += side.Answered
		}
	}
	if answered == 0 {
		return errors.New("no request was answered")
	}
	if j.Gate == 0 {
		return nil
	}
	var missed []string
	for _, p := range r.Points {
		if o := p.Sides[0].Objective; o.Percent < j.Gate {
			at := ""
			if len(r.Points) > 1 {
				at = fmt.Sprintf(" at %s input tokens", p.InputTokens)
			}
			missed = append(missed, fmt.Sprintf("%.1f%% of the requests met %s%s, and --gate wants %g%%", o.Percent, j.SLO, at, j.Gate))
		}
	}
	if len(missed) > 0 {
		return errors.New(strings.Join(missed, "; "))
	}
	return nil
}

// readKey returns the first line of a file with an API key.
func readKey(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	key, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if key = strings.TrimSpace(key); key == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	return key, nil
}
