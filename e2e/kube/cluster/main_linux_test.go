package cluster

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/e2e/kube/container"
)

var (
	enabled     = flag.Bool("cluster", false, "run the scenarios")
	onlyThese   = flag.String("cluster.only", "", "run the scenarios whose name matches, and what they need")
	onlyCI      = flag.Bool("cluster.ci", false, "run the scenarios that CI runs each time")
	onReal      = flag.Bool("cluster.real", false, "run them on the cluster that KUBECONFIG names")
	valuesFile  = flag.String("cluster.values", "", "values `file` for helm besides the tests' own: images, for instance")
	realAddress = flag.String("cluster.address", "", "`host:port` at which the proxy's Service of a real cluster is reached from here")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if !*onReal { // the processes that containers start from are this program too
		container.Enter()
	}
	goleak.VerifyTestMain(m)
}

// scenario is something that a user does, or that happens to him.
type scenario struct {
	name string
	// release says that it works on the release llm, and leaves it as it found it: the release is made whole before, and
	// looked at afterwards.
	release bool
	// local is what it does that only the cluster which this test makes can do; empty: any cluster will do.
	local string
	// ci says that CI runs it each time.
	ci bool
	// limit is how long it may take; 0 = defaultLimit.
	limit time.Duration
	run   func(t *testing.T, r *run)
}

// defaultLimit is four times what the longest scenario takes on two cores.
const defaultLimit = 8 * time.Minute

// chosen reports whether the flags ask for it.
func (s scenario) chosen() bool {
	return (!*onlyCI || s.ci) && (*onlyThese == "" || regexp.MustCompile(*onlyThese).MatchString(s.name))
}

// TestScenarios runs the table in its order, all on one cluster, and prints what came of it.
func TestScenarios(t *testing.T) {
	if !*enabled {
		t.Skip("takes minutes: make e2e runs it, or go test ./e2e/kube/cluster -args -cluster")
	}
	if _, err := regexp.Compile(*onlyThese); err != nil {
		t.Fatalf("-cluster.only: %v", err)
	}
	todo := slices.DeleteFunc(slices.Clone(scenarios), func(s scenario) bool { return !s.chosen() })
	if len(todo) == 0 {
		t.Fatalf("no scenario is called %q", *onlyThese)
	}
	c := newCluster(t)
	var rows []*row
	defer func() { fmt.Print(table(rows)) }()
	for _, s := range todo {
		r := &row{name: s.name}
		rows = append(rows, r)
		t.Run(s.name, func(t *testing.T) { c.play(t, s, r) })
	}
}

// run is a scenario that runs: the cluster, and what is written down of it.
type run struct {
	*cluster
	ctx context.Context // ends when the scenario has taken too long; hides the cluster's own
	row *row
	// strands is how many hand-offs the scenario may leave to run out, because it killed what could have given them back.
	strands int
}

// play runs a scenario and looks at the release afterwards.
func (c *cluster) play(t *testing.T, s scenario, row *row) {
	ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(s.limit, defaultLimit))
	defer cancel()
	defer row.end(t) // however it ends
	r := &run{cluster: c, ctx: ctx, row: row}
	if s.local != "" && c.local == nil {
		r.row.skipped = "needs the cluster that this test makes itself: it " + s.local
		t.Skip(r.row.skipped)
	}
	c.makeNamespace(t, "apply") // the scenario before may have ended with its deletion
	var before map[string]holding
	if s.release {
		c.llm.makeWhole(t, r)
		before = r.holdings(t, c.llm)
	}
	r.row.begin()
	s.run(t, r)
	if s.release && !t.Failed() {
		r.lookAt(t, c.llm, before)
	}
}

// saw notes what a scenario has seen to be so, for the table.
func (r *run) saw(format string, args ...any) {
	r.row.saw = append(r.row.saw, fmt.Sprintf(format, args...))
}

// missing ends a test that lacks a part: it fails where all parts have to be there, else it is skipped.
func missing(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatal(what)
	}
	tb.Skip(what)
}
