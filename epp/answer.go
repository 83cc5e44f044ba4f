package epp

import "github.com/tandem-serving/tandem/pd/body"

// AnswerPlugins are the plugins of a configuration that take part in answers.
type AnswerPlugins struct {
	Stampers  []Stamper
	Reporters []Reporter
}

// Reporter is a plugin that tells the gateway numbers about answers, such as what rate limits go by. It must be safe for concurrent
// use.
type Reporter interface {
	// Report calls set for each number, which becomes dynamic metadata of the request. It is called once for an answer whose token
	// counts are known, at most. A count of u that is not known is -1.
	Report(u body.Usage, set func(namespace, key string, value float64))
}
