package jinja

// expr is an expression.
type expr interface {
	eval(e *env) (Value, error)
}

// stmt is a part of a template's body.
type stmt interface {
	exec(e *env) error
}

// Expressions.
type (
	constant struct{ v Value }
	variable struct {
		id   int // number of its name
		name string
	}
	attribute struct {
		of      expr
		name    string
		methods kinds // that have a method of this name
	}
	item   struct{ of, key expr }
	slice  struct{ of, from, to, step expr } // nil = left out
	sum    struct{ parts []expr }            // parts joined by +
	concat struct{ parts []expr }            // parts joined by ~
	binary struct {
		op          string
		left, right expr
	}
	unary struct {
		op string // - + not
		of expr
	}
	both    struct{ left, right expr } // and
	either  struct{ left, right expr } // or
	compare struct {
		first expr
		rest  []comparison
	}
	comparison struct {
		op string
		to expr
	}
	conditional struct{ then, test, other expr } // other nil = undefined
	list        struct {
		items []expr
		tuple bool
	}
	dict struct{ keys, values []expr }
	call struct {
		of   expr
		args callArgs
	}
	filtered struct {
		of     expr // nil = the body of a block
		name   string
		filter filter
		args   callArgs
	}
	tested struct {
		of   expr
		test test
		args callArgs
	}
)

// callArgs are the arguments of a call as they are written.
type callArgs struct {
	positional []expr
	names      []string
	named      []expr
}

// Statements.
type (
	textStmt  string
	printStmt struct{ of expr }
	ifStmt    struct {
		tests  []expr
		bodies [][]stmt // one more than tests: the last one is that of else
	}
	forStmt struct {
		target    target
		of        expr
		only      expr // nil = all
		body      []stmt
		otherwise []stmt
	}
	setStmt struct {
		target target
		to     expr
	}
	setBlock struct {
		target  target
		body    []stmt
		filters []*filtered
	}
	macro struct {
		id       int
		name     string
		params   []int // numbers of names
		names    []string
		defaults []expr // of the last params
		body     []stmt
		caller   int // number of the name caller
	}
	callBlock struct {
		macro macro // the block, as what caller calls
		call  *call
	}
	filterBlock struct {
		filters []*filtered
		body    []stmt
	}
	withStmt struct {
		targets []target
		values  []expr
		body    []stmt
	}
	scopeStmt struct{ body []stmt } // generation
	flowStmt  struct{ err error }   // break or continue
)

// target is what a value is assigned to: a name, several, or a member of a namespace.
type target struct {
	id    int
	name  string
	parts []target // of a list of names; nil = it is none
	field string   // of a namespace; "" = it is none
}
