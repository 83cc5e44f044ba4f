// Package scale computes how many prefill and decode replicas a pool needs.
//
// In go the picks of requests (Sizer.Picked, on the request path) and their outcomes (Sizer.Observe, apart from it): when requests come,
// how long their prompts and answers are, how much of a prompt is cached, and whether it was split. Out comes a Size for each role, which
// Prometheus metrics, and through them HPA and KEDA, read. The times of prompts, hand-offs and tokens are those of epp/latency, by
// which cost-pd-decider decides, so that the decision and the sizing go by one model.
//
// # The model
//
// Prefill replicas are a queue with several servers, whose service times are those of the prompts that are computed there. Its wait is that
// of M/M/c (Erlang C), made longer by how much service times vary and by how arrivals come in bursts (Allen and Cunneen): the smallest
// number is taken with which the wanted share of the requests have their first token in time. Decode replicas share their time between
// answers: by Little's law the answers that run are the tokens that are wanted in a second times the time of a token, which grows with the
// answers. The smallest number is taken with which tokens are in time, the KV cache suffices, and prompts that are computed there too
// have their first token in time. See Need.
//
// Both roles are computed for the same split of the prompts, so that neither grows because the other is too small. Where the decider
// compares costs, the split that needs the cheapest replicas is assumed: such a decider sends prompts to the role that has time for them. Otherwise
// it is the split that was seen.
//
// # From need to size
//
// The load is that of the latest minute, or of up to ten minutes that it does not contradict, or the trend of the latest five minutes
// until a new replica would serve, if that is more: so long as the latest replicas took. If Config.Pattern says so, rises that are usual at
// the time of day count too, where that has forecast better than the trend, and replicas stay that will be needed again within that time. What waits in the picker has come too, and is to be served within a minute. More replicas
// are wanted at once. Fewer are wanted when they would have been enough for a tenth more load, or two standard errors of the rate, during the whole stabilization window,
// and not within ten minutes after the direction has changed before. Limits bound both.
//
// A pool goes to zero as a whole. The first request that waits in the picker (Sizer.Wake) makes the sizes 1 at once.
//
// # Variants
//
// Several Deployments of one model in a role may have sizes of their own (Variants): a request counts for the cheapest of them that is sized to give it
// what it wants, whichever serves it. What the limit of a variant does not suffice for counts for the next dearer one, and if it has been cheaper
// all along the window that a dearer one serves all of its requests, these count there. The splits of the prompts are chosen for all decode variants
// together, so that prefill replicas, which all of them share, are sized for the sum.
//
// # Roles
//
// The same model tells how many requests a split of the replicas bears (Bears). By it a Turner gives each replica that can prefill and decode one of
// these roles at a time.
//
// The package starts and stops no pods, and reads no metrics pages.
package scale
