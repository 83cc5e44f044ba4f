package kubelet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fact makes facts of a word: "new", "running", "started", "ready", "passed", "0", "1" (ended with), "crash" (ended with 1 and
// is waiting), "lost".
func fact(k kind, name, word string) facts {
	f := facts{name: name, kind: k}
	switch word {
	case "new":
	case "running":
		f.running = &corev1.ContainerStateRunning{}
	case "started":
		f.running, f.started, f.passed = &corev1.ContainerStateRunning{}, true, true
	case "ready":
		f.running, f.started, f.passed, f.ready = &corev1.ContainerStateRunning{}, true, true, true
	case "passed":
		f.ended, f.passed = &corev1.ContainerStateTerminated{ExitCode: 1}, true
	case "0":
		f.ended = &corev1.ContainerStateTerminated{}
	case "1":
		f.ended = &corev1.ContainerStateTerminated{ExitCode: 1}
	case "crash":
		f.ended, f.waiting = &corev1.ContainerStateTerminated{ExitCode: 1}, &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
	case "lost":
		f.ended, f.lost = &corev1.ContainerStateTerminated{ExitCode: 255}, true
	default:
		panic(word)
	}
	return f
}

// containers reads "init=0 side=ready main=new": init… are init containers, side… sidecars.
func containersOf(words string) (list []facts) {
	for _, word := range strings.Fields(words) {
		name, state, _ := strings.Cut(word, "=")
		k := ordinary
		if strings.HasPrefix(name, "init") {
			k = initial
		}
		if strings.HasPrefix(name, "side") {
			k = sidecar
		}
		list = append(list, fact(k, name, state))
	}
	return list
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		containers string
		over       bool
		phase      corev1.PodPhase
		conditions string // initialized, containers ready
	}{
		{"a=new", false, "Pending", "true, false: containers with unready status: [a]"},
		{"a=running", false, "Running", "true, false: containers with unready status: [a]"},
		{"a=ready", false, "Running", "true, true"},
		{"a=ready b=started", false, "Running", "true, false: containers with unready status: [b]"},
		{"a=ready b=new", false, "Pending", "true, false: containers with unready status: [b]"},
		{"a=ready b=crash", false, "Running", "true, false: containers with unready status: [b]"},
		{"a=crash", false, "Running", "true, false: containers with unready status: [a]"},
		{"init=new a=new", false, "Pending", "false: containers with incomplete status: [init], false: containers with unready status: [a]"},
		{"init=1 a=new", false, "Pending", "false: containers with incomplete status: [init], false: containers with unready status: [a]"},
		{"init=0 a=new", false, "Pending", "true, false: containers with unready status: [a]"},
		{"init=0 side=running a=new", false, "Pending", "false: containers with incomplete status: [side], false: containers with unready status: [side a]"},
		{"init=0 side=started a=ready", false, "Running", "true, false: containers with unready status: [side]"},
		{"init=0 side=passed a=new", false, "Pending", "true, false: containers with unready status: [side a]"},
		{"init=0 side=ready a=ready", false, "Running", "true, true"},
		{"init=new side=crash a=ready", false, "Running", "true, false: containers with unready status: [side]"},
		{"init=new a=lost", false, "Pending", "false: containers with incomplete status: [init], false: containers with unready status: [a]"},
		{"side=ready a=0", false, "Running", "true, false: containers with unready status: [a]"},
		{"a=0 b=0", true, "Succeeded", "true: PodCompleted, false: PodCompleted"},
		{"a=0 b=1", true, "Failed", "true, false: PodFailed"},
		{"a=0 b=new", true, "Failed", "true, false: PodFailed"},
		{"init=1 a=new", true, "Failed", "false: containers with incomplete status: [init], false: PodFailed"},
		{"side=passed a=0", true, "Succeeded", "true: PodCompleted, false: PodCompleted"},
	} {
		t.Run(c.containers, func(t *testing.T) {
			p := podFacts{pod: &corev1.Pod{}, over: c.over, containers: containersOf(c.containers)}
			s := p.status(nil, metav1.Now())
			if s.Phase != c.phase {
				t.Errorf("phase %s, want %s", s.Phase, c.phase)
			}
			words := map[corev1.PodConditionType]string{}
			for _, is := range s.Conditions {
				word := strings.ToLower(string(is.Status))
				if is.Reason != "" {
					word += ": " + or(is.Message, is.Reason)
				}
				words[is.Type] = word
			}
			if got := words[corev1.PodInitialized] + ", " + words[corev1.ContainersReady]; got != c.conditions {
				t.Errorf("conditions\n%s, want\n%s", got, c.conditions)
			}
			if words[corev1.PodReady] != words[corev1.ContainersReady] {
				t.Errorf("Ready is %s, ContainersReady %s", words[corev1.PodReady], words[corev1.ContainersReady])
			}
		})
	}
}

func TestStatusTimes(t *testing.T) {
	p := podFacts{pod: &corev1.Pod{}, containers: containersOf("a=running")}
	first := p.status(nil, metav1.Unix(100, 0))
	p.containers[0] = fact(ordinary, "a", "ready")
	second := p.status(first.Conditions, metav1.Unix(200, 0))
	want := map[corev1.PodConditionType]int64{corev1.PodReadyToStartContainers: 100, corev1.PodInitialized: 100, corev1.ContainersReady: 200,
		corev1.PodReady: 200}
	for _, c := range second.Conditions {
		if c.LastTransitionTime.Unix() != want[c.Type] {
			t.Errorf("%s has changed at %d, want %d", c.Type, c.LastTransitionTime.Unix(), want[c.Type])
		}
	}
}

func TestMerge(t *testing.T) {
	others := corev1.PodStatus{QOSClass: "Burstable", Phase: "Pending", Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionFalse}, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}}
	p := podFacts{pod: &corev1.Pod{}, containers: containersOf("a=ready")}
	said := p.status(nil, metav1.Now().Rfc3339Copy())
	merged := merge(others, said)
	if merged.QOSClass != "Burstable" || merged.Phase != "Running" || len(merged.Conditions) != 1+len(said.Conditions) {
		t.Errorf("%+v", merged)
	}
	if same(others, said) {
		t.Error("another status is taken for the same")
	}
	if !same(merged, said) {
		t.Error("the status is not taken for what was said")
	}
}

func TestDue(t *testing.T) {
	for _, c := range []struct {
		policy     corev1.RestartPolicy
		containers string
		due        string
		complete   bool
	}{
		{"Always", "a=new b=new", "[a b]", false},
		{"Always", "a=ready b=0", "[b]", false},
		{"Always", "a=ready b=crash", "[b]", false},
		{"OnFailure", "a=0 b=1", "[b]", false},
		{"OnFailure", "a=0 b=0", "[]", true},
		{"Never", "a=0 b=1", "[]", true},
		{"Never", "a=0 b=running", "[]", false},
		{"Never", "a=0 b=new", "[b]", false},
		{"Always", "init1=new init2=new a=new", "[init1]", false},
		{"Always", "init1=running init2=new a=new", "[]", false},
		{"Always", "init1=1 init2=new a=new", "[init1]", false},
		{"Never", "init1=1 init2=new a=new", "[]", true},
		{"Always", "init1=0 init2=new a=new", "[init2]", false},
		{"Always", "init1=0 init2=0 a=new", "[a]", false},
		{"Always", "side1=new side2=new a=new", "[side1]", false},
		{"Always", "side1=running side2=new a=new", "[]", false},
		{"Always", "side1=started side2=new a=new", "[side2]", false},
		{"Always", "side1=passed side2=new a=new", "[side1 side2]", false},
		{"Always", "side1=passed init2=running a=new", "[side1]", false},
		{"Never", "side1=ready a=0", "[]", true},
		{"Never", "side1=passed a=running", "[side1]", false},
		{"Always", "init1=new side1=passed a=ready", "[side1]", false},
		{"Always", "init1=new a=lost", "[init1]", false},
		{"Always", "init1=0 a=lost", "[a]", false},
	} {
		t.Run(string(c.policy)+" "+c.containers, func(t *testing.T) {
			var slots []*slot
			for _, f := range containersOf(c.containers) {
				slots = append(slots, &slot{facts: f})
			}
			names := []string{}
			for _, s := range due(slots, c.policy) {
				names = append(names, s.name)
			}
			if got := fmt.Sprint(names); got != c.due {
				t.Errorf("due are %s, want %s", got, c.due)
			}
			if got := complete(slots, c.policy); got != c.complete {
				t.Errorf("complete: %t, want %t", got, c.complete)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	b := backoff{first: firstBackoff, immediate: true}
	var got []time.Duration
	for range 8 {
		got = append(got, b.fail(time.Second)/time.Second)
	}
	if text := fmt.Sprintf("%d", got); text != "[0 10 20 40 80 160 300 300]" {
		t.Errorf("pauses of %s seconds", text)
	}
	if d := b.fail(11 * time.Minute); d != 0 {
		t.Errorf("after a long quiet run it pauses for %v", d)
	}
	b = backoff{first: firstBackoff}
	if d := b.fail(0); d != firstBackoff {
		t.Errorf("the first pause of another kind is %v", d)
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		numbers
		verdict bool
		results string // + or - each
		want    string // verdict after each; ! where one was brought
	}{
		{numbers{1, 3}, true, "--+---+", "+ + + + + -! +!"},
		{numbers{2, 1}, false, "+-++-", "- -! - +! -!"},
		{numbers{1, 2}, true, "----", "+ -! -! -!"},
		{numbers{0, 0}, false, "+-", "+! -!"},
	} {
		j := judge{numbers: c.numbers, verdict: c.verdict}
		var got []string
		for _, r := range c.results {
			decided, word := j.count(r == '+'), "-"
			if j.verdict {
				word = "+"
			}
			if decided {
				word += "!"
			}
			got = append(got, word)
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%v, %s: %s, want %s", c.numbers, c.results, text, c.want)
		}
	}
}
