package kube

import (
	"errors"
	"fmt"
	"strings"
)

// maxProblems bounds how many problems Trouble lists.
const maxProblems = 10

// openProblem is a problem that has not been solved yet.
type openProblem struct {
	key   string // constant for one trouble, which is logged once
	text  string
	early bool // the API server has just not answered yet
}

// problemSet holds the problems found in one check.
type problemSet struct {
	list     []openProblem
	unnamed  int  // how many more there are than list holds
	watching bool // one of them is a watch that does not run
}

// add records a problem, unless there is one with its key.
func (t *problemSet) add(key, text string) {
	for _, known := range t.list {
		if known.key == key {
			return
		}
	}
	t.list = append(t.list, openProblem{key: key, text: text})
}

// follower records why a follower does not run.
func (t *problemSet) follower(f *follower, broken *fault, told bool, namespace string) {
	if broken == nil {
		if !told {
			t.watching = true
			t.list = append(t.list, openProblem{key: "first " + f.kind.String(), early: true,
				text: fmt.Sprintf("the API server has not yet told which %v there are in namespace %s", f.kind, namespace)})
		}
		return
	}
	t.watching = true
	stays := ""
	if told {
		stays = "; what it told before stays in use"
	}
	key := broken.reason + " " + f.kind.String()
	switch broken.reason {
	case faultUnreachable: // the same for all kinds
		t.add(broken.reason, fmt.Sprintf("the API server cannot be reached: %v%s", broken.err, stays))
	case faultUnauthorized:
		t.add(broken.reason, fmt.Sprintf("the API server does not accept the picker's credentials: %v; see to the service"+
			" account's token, or the kubeconfig%s", broken.err, stays))
	case faultForbidden:
		t.add(key, fmt.Sprintf("%v may not be read: %v; grant the verbs list and watch on %v in namespace %s to the picker's"+
			" service account%s", f.kind, broken.err, f.kind, namespace, stays))
	case faultMissing:
		t.add(key, fmt.Sprintf("the cluster does not have the kind %s of %s: install its CRD, give the --pool-group that the"+
			" cluster has, or do without by --endpoint-selector", f.kind.gvk.Kind, f.kind.gvk.GroupVersion()))
	default:
		t.add(key, fmt.Sprintf("%v cannot be watched: %v%s", f.kind, broken.err, stays))
	}
}

// noPool records that there is no pool.
func (t *problemSet) noPool(before bool, o *Options) {
	if before {
		t.add("pool", fmt.Sprintf("InferencePool %s/%s was deleted: there are no endpoints until it is there again",
			o.Namespace, o.Pool))
		return
	}
	t.add("pool", fmt.Sprintf("there is no InferencePool %s/%s in the group %s: create it, or correct --pool-name,"+
		" --pool-namespace and --pool-group", o.Namespace, o.Pool, o.Group))
}

// complain records the problems of pods.
func (r *run) complain(found *problemSet) {
	for _, s := range []*selected{r.pods, r.next} {
		if s != nil {
			broken, told := s.follower.state()
			found.follower(s.follower, broken, told, r.options.Namespace)
		}
	}
	if r.pods == nil {
		return
	}
	problems := r.pods.podSet.problemTexts()
	for _, problem := range problems[:min(len(problems), maxProblems)] {
		found.add(problem, problem)
	}
	found.unnamed = max(0, len(problems)-maxProblems)
}

// report stores the problems for Trouble, and logs new and solved ones.
func (r *run) report(found *problemSet) {
	r.trouble.Store(nil)
	if len(found.list) > 0 {
		err := found.err()
		r.trouble.Store(&err)
	}
	now := make(map[string]string, len(found.list))
	for _, t := range found.list {
		if t.early {
			continue
		}
		now[t.key] = t.text
		if _, told := r.told[t.key]; !told {
			r.options.Log.Warn("the cluster is not as it should be", "problem", t.text)
		}
	}
	for key, text := range r.told {
		if _, still := now[key]; !still {
			r.options.Log.Info("the cluster has a problem less", "problem", text)
		}
	}
	r.told = now
}

// err returns all problems in one line.
func (t *problemSet) err() error {
	text := make([]string, 0, len(t.list))
	for _, one := range t.list[:min(len(t.list), maxProblems)] {
		text = append(text, one.text)
	}
	if more := len(t.list) - len(text) + t.unnamed; more > 0 {
		text = append(text, fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(text, " | "))
}
