package shadow

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp/shadow"
)

// Summary is what the command does, for help pages.
const Summary = "show what a second configuration would decide about live traffic, and what it would bring"

// settings are the flags.
type settings struct {
	Admin   string        `flag:"admin" arg:"HOST:PORT" help:"admin address of the picker (its --admin-address)"`
	JSON    bool          `flag:"json" help:"print the whole answer as JSON"`
	Top     int           `flag:"top" arg:"NUMBER" help:"number of different decisions to show, the latest first"`
	Timeout time.Duration `flag:"timeout" help:"longest wait for the picker"`
}

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	p.RequireAddress("admin", s.Admin)
	p.Require(s.Top >= 0, "top", "must not be negative")
	p.Require(s.Timeout > 0, "timeout", "must be positive")
}

// answerLimit is the largest answer that is read, in bytes.
const answerLimit = 4 << 20

// Run runs the command. The error is an Exit with CodeMissing if no picker answers, or if it has no shadow.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := settings{Admin: "127.0.0.1:9091", Top: 5, Timeout: 10 * time.Second}
	operands, err := (boot.Program{Summary: "shadow: " + Summary + "."}).Load(std, &s, args)
	if err != nil {
		return err
	}
	if len(operands) > 0 {
		return boot.Usagef("want no operands, got %q (see --help)", operands)
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	answer, err := s.ask(ctx)
	if err != nil {
		return err
	}
	if s.JSON {
		_, err = fmt.Fprintf(std.Stdout, "%s\n", bytes.TrimSpace(answer))
		return err
	}
	var v shadow.View
	if err := json.Unmarshal(answer, &v); err != nil {
		return fmt.Errorf("reading the picker's answer: %w", err)
	}
	_, err = io.WriteString(std.Stdout, text(&v, s.Top))
	return err
}

func (s *settings) ask(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Admin+"/debug/shadow", nil)
	if err != nil {
		return nil, boot.Usagef("making the request: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, boot.Missingf("calling the picker: %w (check that it runs, and that %s is its --admin-address)", err, s.Admin)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the picker's answer: %w", err)
	case resp.StatusCode == http.StatusNotFound:
		return nil, boot.Missingf("asking %s: %s", s.Admin, bytes.TrimSpace(answer))
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("calling the picker: %s answered %s: %s", s.Admin, resp.Status, bytes.TrimSpace(answer))
	}
	return answer, nil
}
