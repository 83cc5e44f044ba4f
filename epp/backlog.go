package epp

// Backlog tells which load waits for capacity. It is safe for concurrent use, and returns at once.
type Backlog interface {
	// Backlog returns the requests that wait, and the tokens of their prompts.
	Backlog() InFlight
}

// BacklogFollower is a plugin that needs to know what waits. It is told where to ask when a configuration with queues is put to use.
type BacklogFollower interface{ FollowBacklog(Backlog) }

// Queued is what waits in the queues of one priority.
type Queued struct {
	Priority int
	Requests int
	Bytes    int64 // of their bodies
}
