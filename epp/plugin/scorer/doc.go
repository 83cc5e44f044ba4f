// Package scorer holds the plugins that rate candidates of a pick from 0 to 1.
//
// A round and its candidates enter; a score for each leaves. Scorers allocate nothing, and rate what they do not know in the
// middle. They do not weigh or sum up the scores (epp/sched does), and drop no candidate (epp/plugin/filter does).
package scorer
