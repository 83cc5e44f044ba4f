package bench

import (
	"math"
	"slices"
	"testing"
	"time"
)

// costsOf are rounds in which one exchange costs so many ms.
func costsOf(each ...float64) (costs []cost) {
	for _, ms := range each {
		costs = append(costs, cost{done: 100, took: time.Second, cpu: time.Duration(ms * 100 * float64(time.Millisecond)),
			objects: 5000,
			bench:   10 * time.Millisecond})
	}
	return costs
}

func TestRated(t *testing.T) {
	contenders := []*contender{{part: partFloor}, {part: partOurs}, {part: partOther}}
	// The second round is twice as slow for all: ratios do not show it.
	row := rated("table", "series", contenders, [][]cost{costsOf(1, 2, 1), costsOf(1.1, 2.2, 1.3), costsOf(2, 4, 2)}, 1.1)
	if row.Ratio != 1.1 || row.OtherRatio != 2 || math.Abs(row.Least-1.1) > 1e-9 || math.Abs(row.Most-1.3) > 1e-9 || !row.Met {
		t.Errorf("%+v", row)
	}
	f := row.Ours
	if f.Value != 1.3 || math.Abs(f.PerCore-769.23) > 0.01 || *f.Objects != 50 || f.Bench != 0.1 ||
		math.Abs(f.Busy-0.46/3) > 1e-9 {
		t.Errorf("%+v, %v objects", f, *f.Objects)
	}
	if row.Floor.Value != 1 || row.Other.Value != 2 {
		t.Errorf("floor %+v, other %+v", row.Floor, row.Other)
	}
	if row = rated("", "", contenders[:2], [][]cost{costsOf(1), costsOf(1.2)}, 1.1); row.Met || row.Other != nil ||
		row.OtherRatio != 0 {
		t.Errorf("%+v", row)
	}
	unknown := costsOf(1)
	unknown[0].objects = -1
	if row = rated("", "", contenders[:2], [][]cost{costsOf(1), unknown}, 2); row.Ours.Objects != nil {
		t.Errorf("%v objects, which nobody counted", *row.Ours.Objects)
	}
}

func TestAbsolute(t *testing.T) {
	row := absolute("", "", []float64{3, 1, 2}, 2)
	if row.Ours.Value != 2 || row.Least != 1 || row.Most != 3 || !row.Met {
		t.Errorf("%+v", row)
	}
	if row = absolute("", "", []float64{1}, 0); row.Met {
		t.Errorf("%+v", row)
	}
}

func TestAdded(t *testing.T) {
	base := delays{{1, 1, 1}, {5, 5, 9}, {1, 1, 1}}
	p50, p99 := delays{{2, 2, 8}, {5.5, 5.5, 5.5}, {0.5, 0.5, 0.5}}.added(base)
	if !slices.Equal(p50, []float64{1, 0.5, -0.5}) || p99 != -1 {
		t.Errorf("p50 %v, p99 %v", p50, p99)
	}
	var f Figure
	f.later(delays{{3}}, delays{{1}})
	if *f.P50 != 2 || *f.P99 != 2 {
		t.Errorf("%v, %v", *f.P50, *f.P99)
	}
}

func TestDecisionRows(t *testing.T) {
	contenders := []*contender{{part: partFloor}, {part: partOurs}, {part: partOther}}
	waits := []delays{{{1, 1}}, {{2, 3}}, {{9, 9}}}
	rows, err := decisionRows(contenders, waits, delays{{0.05, 0.3}, {0.06, 0.5}})
	if err != nil || len(rows) != 2 {
		t.Fatal(rows, err)
	}
	if p50 := rows[0]; p50.Ours.Value != 0.06 || !p50.Met || *p50.Ours.P50 != 1.5 || p50.Other.Value != 8 {
		t.Errorf("%+v", p50)
	}
	if p99 := rows[1]; p99.Ours.Value != 0.5 || p99.Met || p99.Least != 0.3 {
		t.Errorf("%+v", p99)
	}
	if _, err := decisionRows(contenders, waits, delays{{}}); err == nil {
		t.Error("what a picker does not say was met")
	}
}

func TestSubjectsThatCannotBeMeasured(t *testing.T) {
	const nobody = 1<<22 + 1 // Linux numbers processes up to 1<<22
	if _, err := cpuTime(nobody); err == nil {
		t.Error("CPU time of nobody")
	}
	if _, _, err := memory(nobody); err == nil {
		t.Error("memory of nobody")
	}
}
