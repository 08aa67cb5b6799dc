package check

// Checkers are all that judge a run, with what each says must hold.
func Checkers() (all []Outcome) {
	for _, c := range checkers {
		all = append(all, Outcome{Name: c.name, Invariant: c.invariant})
	}
	return all
}
