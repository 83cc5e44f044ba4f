package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// Summary is what the command does, for help pages.
const Summary = "submit, watch, list, cancel and fetch batches of requests"

// settings are the flags.
type settings struct {
	Server serverFlags `group:"Server"`
	Submit submitFlags `group:"submit"`
	Watch  watchFlags  `group:"watch"`
	Fetch  fetchFlags  `group:"fetch"`
	List   listFlags   `group:"list"`
	JSON   bool        `flag:"json" help:"print batches as JSON, one a line"`
}

type serverFlags struct {
	URL     string        `flag:"url" arg:"URL" help:"server of the Batch API"`
	Key     string        `flag:"api-key-file" arg:"FILE" help:"file with the API key, which says whose files and batches are meant"`
	CA      string        `flag:"ca-file" arg:"FILE" help:"certificate authorities of the server. Default: the system's"`
	Timeout time.Duration `flag:"timeout" arg:"DURATION" help:"longest wait for an answer, and for the next part of a file"`
}

type submitFlags struct {
	Endpoint string   `flag:"endpoint" arg:"PATH" help:"what the requests are for, such as /v1/chat/completions. Default: what the first line says"`
	Window   string   `flag:"window" arg:"TIME" help:"completion window: 24h, 90m or 7d. Lines that have not run then are given up"`
	Metadata []string `flag:"metadata" arg:"KEY=VALUE[,…]" help:"metadata of the batch; may be repeated"`
	Watch    bool     `flag:"watch" help:"watch the batch that was submitted"`
}

type watchFlags struct {
	Interval time.Duration `flag:"interval" arg:"DURATION" help:"time between two looks at the batch"`
	GiveUp   time.Duration `flag:"give-up" arg:"DURATION" help:"how long a server may not answer that did before"`
}

type fetchFlags struct {
	Output string `flag:"output" arg:"PATH" help:"where the answers go; - is stdout. Default: BATCH_output.jsonl"`
	Errors string `flag:"errors" arg:"PATH" help:"where the lines without an answer go; - is stdout. Default: BATCH_error.jsonl"`
}

type listFlags struct {
	Limit int `flag:"limit" arg:"NUMBER" help:"how many batches to show, the newest first"`
}

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	if _, err := s.Server.base(); err != nil {
		p.Add("url", "%w", err)
	}
	if _, err := s.Server.key(); err != nil {
		p.Add("api-key-file", "%w", err)
	}
	p.Require(s.Server.Timeout > 0, "timeout", "must be positive")
	for _, pair := range s.Submit.Metadata {
		key, _, ok := strings.Cut(pair, "=")
		p.Require(ok && key != "", "metadata", "%q is not KEY=VALUE", pair)
	}
	p.Require(s.Watch.Interval > 0, "interval", "must be positive")
	p.Require(s.Watch.GiveUp >= 0, "give-up", "must not be negative")
	p.Require(s.List.Limit > 0, "limit", "must be positive")
}

var program = boot.Program{
	Summary:  "batch: " + Summary + ".",
	Operands: "submit FILE | watch BATCH | fetch BATCH | cancel BATCH | list",
	Notes: map[string][]string{"Exit codes": {
		"0: what was asked for is done. The batch that was watched has completed, and each of its lines was answered.",
		"1: the batch has failed, expired or was cancelled, or lines of it failed; or the server refused.",
		"2: wrong command line. 3: wrong settings. 4: the server cannot be reached.",
	}},
}

// actions has what each action does with its operand.
var actions = map[string]func(ctx context.Context, r *run, operand string) error{
	"submit": submit, "watch": watch, "fetch": fetch, "cancel": cancel, "list": list,
}

// run is one run of the command.
type run struct {
	settings
	std    boot.IO
	server *server
}

// Run runs the command. The error is an Exit with CodeMissing if the server cannot be reached.
func Run(ctx context.Context, std boot.IO, args []string) error {
	r := &run{std: std, settings: settings{Server: serverFlags{URL: "http://127.0.0.1:8085", Timeout: time.Minute}, Submit: submitFlags{Window: "24h"},
		Watch: watchFlags{Interval: 2 * time.Second, GiveUp: 5 * time.Minute}, List: listFlags{Limit: 20}}}
	operands, err := program.Load(std, &r.settings, args)
	if err != nil {
		return err
	}
	if len(operands) == 0 {
		return boot.Usagef("an action is missing: %s (see --help)", program.Operands)
	}
	action, operand := operands[0], ""
	do, known := actions[action]
	if !known {
		return boot.Usagef("unknown action %q: want %s", action, program.Operands)
	}
	wanted := 1
	if action != "list" {
		wanted = 2
	}
	if len(operands) != wanted {
		return boot.Usagef("%s has %d operands: want %s", action, len(operands)-1, program.Operands)
	}
	if wanted == 2 {
		operand = operands[1]
	}
	if r.server, err = newServer(r.Server); err != nil {
		return err
	}
	defer r.server.close()
	return do(ctx, r, operand)
}

// object is a batch.
type object struct {
	ID           string            `json:"id"`
	Endpoint     string            `json:"endpoint"`
	Model        string            `json:"model"`
	Status       string            `json:"status"`
	OutputFile   string            `json:"output_file_id"`
	ErrorFile    string            `json:"error_file_id"`
	CreatedAt    int64             `json:"created_at"`
	InProgressAt int64             `json:"in_progress_at"`
	ExpiresAt    int64             `json:"expires_at"`
	Metadata     map[string]string `json:"metadata"`
	Counts       struct {
		Total     int64 `json:"total"`
		Completed int64 `json:"completed"`
		Failed    int64 `json:"failed"`
	} `json:"request_counts"`
	Errors struct {
		Data []struct {
			Line    int64  `json:"line"`
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"data"`
	} `json:"errors"`

	raw json.RawMessage // all of it
}

// UnmarshalJSON keeps the whole object.
func (b *object) UnmarshalJSON(text []byte) error {
	type plain object // without this method
	if err := json.Unmarshal(text, (*plain)(b)); err != nil {
		return err
	}
	b.raw = slices.Clone(text)
	return nil
}

func (b *object) ended() bool {
	return slices.Contains([]string{"completed", "failed", "expired", "cancelled"}, b.Status)
}

// verdict returns why the exit code of an ended batch is 1; nil: it is 0.
func (b *object) verdict() error {
	switch {
	case len(b.Errors.Data) > 0:
		var all strings.Builder
		for _, e := range b.Errors.Data {
			if e.Line > 0 {
				fmt.Fprintf(&all, "\n  line %d: ", e.Line)
			} else {
				all.WriteString("\n  ")
			}
			all.WriteString(printable(e.Message))
		}
		return fmt.Errorf("batch %s has failed: its input file is wrong%s", b.ID, all.String())
	case b.Status != "completed":
		return fmt.Errorf("batch %s is %s: %d of %d lines were answered", b.ID, b.Status, b.Counts.Completed, b.Counts.Total)
	case b.Counts.Failed > 0:
		return fmt.Errorf("%d of %d lines of batch %s have failed: tandem batch fetch %s gets the reasons", b.Counts.Failed, b.Counts.Total, b.ID, b.ID)
	}
	return nil
}

// print prints a batch, or a text about it.
func (r *run) print(b *object, format string, args ...any) error {
	if r.JSON {
		_, err := fmt.Fprintf(r.std.Stdout, "%s\n", b.raw)
		return err
	}
	_, err := fmt.Fprintf(r.std.Stdout, format+"\n", args...)
	return err
}

func cancel(ctx context.Context, r *run, id string) error {
	var b object
	if err := r.server.call(ctx, http.MethodPost, batchPath(id)+"/cancel", nil, &b); err != nil {
		return err
	}
	return r.print(&b, "%s %s", b.ID, b.Status)
}

// pageSize is the most batches that the API lists at a time.
const pageSize = 100

func list(ctx context.Context, r *run, _ string) error {
	var all []object
	for after := ""; len(all) < r.List.Limit; {
		var page struct {
			Data    []object `json:"data"`
			HasMore bool     `json:"has_more"`
		}
		path := fmt.Sprintf("/v1/batches?limit=%d", min(r.List.Limit-len(all), pageSize))
		if after != "" {
			path += "&after=" + after
		}
		if err := r.server.call(ctx, http.MethodGet, path, nil, &page); err != nil {
			return err
		}
		if all = append(all, page.Data...); !page.HasMore || len(page.Data) == 0 {
			break
		}
		after = page.Data[len(page.Data)-1].ID
	}
	table := tabwriter.NewWriter(r.std.Stdout, 0, 0, 2, ' ', 0)
	if !r.JSON {
		fmt.Fprintln(table, "BATCH\tSTATUS\tLINES\tANSWERED\tFAILED\tCREATED\tENDPOINT\tMODEL")
	}
	for _, b := range all {
		if r.JSON {
			if err := r.print(&b, ""); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", b.ID, b.Status, b.Counts.Total, b.Counts.Completed, b.Counts.Failed,
			time.Unix(b.CreatedAt, 0).Format(time.DateTime), b.Endpoint, printable(b.Model))
	}
	return table.Flush()
}

// fetch writes the output file and the error file of a batch that has ended.
func fetch(ctx context.Context, r *run, id string) error {
	var b object
	if err := r.server.call(ctx, http.MethodGet, batchPath(id), nil, &b); err != nil {
		return err
	}
	if !b.ended() {
		return fmt.Errorf("batch %s is %s, and has no files yet: wait with tandem batch watch %s", b.ID, b.Status, b.ID)
	}
	for _, f := range []struct{ file, to, usual string }{{b.OutputFile, r.Fetch.Output, "_output.jsonl"}, {b.ErrorFile, r.Fetch.Errors, "_error.jsonl"}} {
		if f.file == "" {
			continue
		}
		if f.to == "" {
			f.to = safeName(b.ID) + f.usual
		}
		if err := r.save(ctx, f.file, f.to); err != nil {
			return err
		}
	}
	return b.verdict()
}

// save writes a file of the server, as a whole or not at all.
func (r *run) save(ctx context.Context, file, to string) error {
	if to == "-" {
		_, err := r.server.download(ctx, file, r.std.Stdout)
		return err
	}
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("%s exists: remove it, or name another file with --output or --errors", to)
	}
	part, err := os.CreateTemp(filepath.Dir(to), ".tandem-batch-*")
	if err != nil {
		return boot.Missingf("creating %s: %w", to, err)
	}
	defer func() { _ = os.Remove(part.Name()) }() // it was renamed, or is not whole
	n, err := r.server.download(ctx, file, part)
	if err = errors.Join(err, part.Close()); err != nil {
		return err
	}
	if err := os.Rename(part.Name(), to); err != nil {
		return fmt.Errorf("creating %s: %w", to, err)
	}
	_, err = fmt.Fprintf(r.std.Stderr, "%s: %s\n", to, size(n))
	return err
}

// endpointOf returns the path that the first request of a file is for.
func endpointOf(file io.Reader) (string, error) {
	var first struct {
		URL string `json:"url"`
	}
	err := json.NewDecoder(io.LimitReader(file, batch.MaxLine)).Decode(&first)
	if err == nil && first.URL == "" {
		err = errors.New("it has no url")
	}
	if err != nil {
		return "", fmt.Errorf("reading the first request: %w (each line is a JSON object with custom_id, method, url and body)", err)
	}
	return first.URL, nil
}
