package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
)

// Summary is what the command does, for help pages.
const Summary = "show where a running picker would send a request, and why"

var program = boot.Program{
	Summary:  "explain: " + Summary + ". FILE holds the request body; - reads it from stdin.",
	Operands: "FILE",
}

// settings are the flags.
type settings struct {
	Admin   string        `flag:"admin" arg:"HOST:PORT" help:"admin address of the picker (its --admin-address)"`
	Path    string        `flag:"path" arg:"PATH" help:"URL path that the request would be sent to"`
	Headers []string      `flag:"header" arg:"NAME: VALUE[,…]" help:"headers of the request, such as \"x-tandem-pd: force\""`
	JSON    bool          `flag:"json" help:"print the whole answer as JSON"`
	Top     int           `flag:"top" arg:"NUMBER" help:"number of candidates to show for each stage; 0 shows all"`
	Timeout time.Duration `flag:"timeout" help:"longest wait for the picker"`
}

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	p.RequireAddress("admin", s.Admin)
	p.Require(strings.HasPrefix(s.Path, "/"), "path", "%q does not begin with a slash", s.Path)
	p.Require(s.Top >= 0, "top", "must not be negative")
	p.Require(s.Timeout > 0, "timeout", "must be positive")
	for _, h := range s.Headers {
		p.Require(headerForm.MatchString(h), "header", "%q is not NAME: VALUE; commas separate headers: for several values, repeat the name", h)
	}
}

// headerForm requires a letter first: otherwise 10.0.0.2:8000, the rest of a list of addresses, would be a header.
var headerForm = regexp.MustCompile(`^\s*[A-Za-z][^\s:]*\s*:`)

// answerLimit is the largest answer that is read, in bytes: a large pool needs some 200 for each score of each candidate.
const answerLimit = 64 << 20

// Run runs the command. The error is an Exit with CodeMissing if no picker answers.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := settings{Admin: "127.0.0.1:9091", Path: "/v1/chat/completions", Top: 10, Timeout: 10 * time.Second}
	operands, err := program.Load(std, &s, args)
	if err != nil {
		return err
	}
	if len(operands) != 1 {
		return boot.Usagef("want one FILE with the request body, or - for stdin (see --help)")
	}
	body, err := read(std, operands[0])
	if err != nil {
		return boot.Missingf("reading the request body: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	answer, err := s.ask(ctx, body)
	if err != nil {
		return err
	}
	if s.JSON {
		_, err = fmt.Fprintf(std.Stdout, "%s\n", bytes.TrimSpace(answer))
		return err
	}
	var x epp.Explanation
	if err := json.Unmarshal(answer, &x); err != nil {
		return fmt.Errorf("reading the picker's answer: %w", err)
	}
	_, err = io.WriteString(std.Stdout, Text(&x, s.Top))
	return err
}

func read(std boot.IO, file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(std.Stdin)
	}
	return os.ReadFile(file)
}

func (s *settings) ask(ctx context.Context, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.Admin+"/explain"+s.Path, bytes.NewReader(body))
	if err != nil {
		return nil, boot.Usagef("making the request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	for _, h := range s.Headers {
		name, value, _ := strings.Cut(h, ":")
		req.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, boot.Missingf("calling the picker: %w (check that it runs, and that %s is its --admin-address)", err, s.Admin)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	if err != nil {
		return nil, fmt.Errorf("reading the picker's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("calling the picker: %s answered %s: %s", s.Admin, resp.Status, bytes.TrimSpace(answer))
	}
	return answer, nil
}
