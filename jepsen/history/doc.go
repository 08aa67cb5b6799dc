// Package history is what a run leaves to be judged: what was asked and answered, which policies there were, and how
// this suite reads a policy, by code of its own. It knows neither how a run is made nor what is right.
package history
