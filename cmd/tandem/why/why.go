package why

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/pd"
)

// Summary is what the command does, for help pages.
const Summary = "tell what happened to a request, and where its time went"

var program = boot.Program{
	Summary:  "why: " + Summary + ". REQUEST_ID is the x-request-id of its answer, which logs and traces have too.",
	Operands: "REQUEST_ID",
}

// settings are the flags.
type settings struct {
	Places  placeFlags   `group:"Where to ask: these, or a cluster. Default: a picker and a sidecar on this machine"`
	Cluster clusterFlags `group:"Cluster"`
	Show    showFlags    `group:"How to ask"`
}

type placeFlags struct {
	Up       string   `flag:"up" arg:"FILE" help:"output of a running tandem up (its stdout); - reads stdin"`
	Pickers  []string `flag:"epp-admin" arg:"HOST:PORT[,…]" help:"admin addresses of pickers (their --admin-address)"`
	Sidecars []string `flag:"sidecar-admin" arg:"HOST:PORT[,…]" help:"admin addresses of sidecars (their --admin-address)"`
}

type clusterFlags struct {
	Namespace  string `flag:"namespace" arg:"NAME" help:"namespace of the pods; they are asked by port forwarding, which the user must be allowed (create pods/portforward)"`
	Release    string `flag:"release" arg:"NAME" help:"Helm release, if the namespace has several"`
	Kubeconfig string `flag:"kubeconfig" arg:"FILE" help:"default: KUBECONFIG, the usual file, or the pod's own service account"`
}

type showFlags struct {
	JSON    bool          `flag:"json" help:"print what was told as JSON"`
	Timeout time.Duration `flag:"timeout" help:"longest time for all answers"`
}

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	for flag, addresses := range map[string][]string{"epp-admin": s.Places.Pickers, "sidecar-admin": s.Places.Sidecars} {
		for _, address := range addresses {
			p.RequireAddress(flag, address)
		}
	}
	p.Require(s.Cluster.Namespace == "" || !s.Places.given(), "namespace", "cannot be combined with --up, --epp-admin and --sidecar-admin")
	p.Require(s.Cluster.Namespace != "" || s.Cluster.Release == "", "release", "needs --namespace")
	p.Require(s.Show.Timeout > 0, "timeout", "must be positive")
}

func (f *placeFlags) given() bool { return f.Up != "" || len(f.Pickers) > 0 || len(f.Sidecars) > 0 }

// Run runs the command. The error is an Exit with CodeMissing if no picker and no sidecar answers.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := settings{Show: showFlags{Timeout: 30 * time.Second}}
	operands, err := program.Load(std, &s, args)
	if err != nil {
		return err
	}
	if len(operands) != 1 {
		return boot.Usagef("want one REQUEST_ID (see --help)")
	}
	id := operands[0]
	if !pd.WellFormedRequestID(id) {
		return boot.Usagef("%q is not a request id: these have letters, digits and -._: only. The header x-request-id of the answer has it", id)
	}
	ctx, cancel := context.WithTimeout(ctx, s.Show.Timeout)
	defer cancel()
	all, err := s.places(ctx, std)
	if err != nil {
		return err
	}
	told := all.tell(ctx, id)
	for _, trouble := range told.Troubles {
		if _, err := fmt.Fprintln(std.Stderr, clean(trouble)); err != nil {
			return fmt.Errorf("printing who did not answer: %w", err)
		}
	}
	if told.answered() == 0 {
		return boot.Missingf("no picker and no sidecar answers: name their admin addresses with --up, --epp-admin and --sidecar-admin, or a --namespace")
	}
	if len(told.Stories) == 0 {
		return fmt.Errorf("none of the %d pickers and sidecars that answered remembers %s: it may still be running, or be older than what they keep "+
			"(--recent-requests)", told.answered(), id)
	}
	if s.Show.JSON {
		enc := json.NewEncoder(std.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(told)
	}
	_, err = io.WriteString(std.Stdout, clean(told.text()))
	return err
}

// places returns whom to ask.
func (s *settings) places(ctx context.Context, std boot.IO) (*places, error) {
	if s.Cluster.Namespace != "" {
		return s.Cluster.places(ctx)
	}
	f := s.Places
	if f.Up != "" {
		if err := f.readUp(std); err != nil {
			return nil, err
		}
	}
	if !f.given() {
		f.Pickers, f.Sidecars = []string{"127.0.0.1:9091"}, []string{"127.0.0.1:9096"}
	}
	all := &places{}
	for _, address := range f.Pickers {
		all.pickers = append(all.pickers, place{name: address, get: direct(address)})
	}
	for _, address := range f.Sidecars {
		all.sidecars = append(all.sidecars, place{name: address, get: direct(address)})
	}
	return all, nil
}

// upLimit is the most that is read of the output of tandem up, in bytes: its first line.
const upLimit = 1 << 20

// readUp adds the admin addresses of the ready line of tandem up.
func (f *placeFlags) readUp(std boot.IO) error {
	in := std.Stdin
	if f.Up != "-" {
		file, err := os.Open(f.Up)
		if err != nil {
			return boot.Configf("up: %w", err)
		}
		defer file.Close()
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, upLimit))
	if err != nil {
		return boot.Configf("up: %w", err)
	}
	var ready struct {
		Ready     string
		Addresses map[string]string
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	if err := json.Unmarshal(line, &ready); err != nil || ready.Ready != "up" {
		return boot.Configf("up: %s does not begin with the ready line of tandem up (save its stdout: tandem up >FILE)", f.Up)
	}
	for purpose, address := range ready.Addresses {
		switch {
		case purpose == "admin":
			f.Pickers = append(f.Pickers, address)
		case strings.HasSuffix(purpose, boot.PodAddress("", boot.SidecarAdminAddress)):
			f.Sidecars = append(f.Sidecars, address)
		}
	}
	slices.Sort(f.Sidecars)
	return nil
}

// clean removes what could control a terminal: parts of errors come from engines.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0) {
			return -1
		}
		return r
	}, text)
}
